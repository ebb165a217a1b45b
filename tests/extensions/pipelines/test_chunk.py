"""Cut texts into pieces: compared with a definition that looks at one character after the other."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.texts import Chunk
from frameworks.core.errors import InvalidInput


def chunk(text: str, size: int, overlap: int = 0, max_rows: int | None = None) -> list[str]:
    """Return the pieces of a text."""
    entry = StepEntry.model_validate(
        {
            "name": "cut", "builtin": "chunk", "chunk_size": size, "overlap": overlap, "max_rows": max_rows,
            "inputs": {"text": "text"},
        }
    )  # fmt: skip
    texts = np.empty(1, dtype=object)
    texts[0] = text
    pieces: list[str] = Chunk(entry).run({"text": texts})["chunks"].tolist()
    return pieces


def reference(text: str, size: int, overlap: int) -> Iterator[str]:
    """Yield the pieces, as the manual describes them."""
    start, length = 0, len(text)
    if not text.strip():
        yield ""
        return
    while start < length:
        end = min(start + size, length)
        if end < length and not text[end].isspace():
            cut = next((at for at in range(end, start, -1) if text[at - 1].isspace()), start)
            end = cut if text[start:cut].strip() else end
        if text[start:end].strip():
            yield text[start:end].strip()
        if end == length:
            return
        start = max(end - overlap, start + 1) if overlap else end
        while overlap and 0 < start < end and not text[start - 1].isspace() and not text[start].isspace():
            start += 1


@given(st.text("ab \n\u2003", max_size=40), st.integers(1, 12), st.data())
def test_pieces_equal_those_of_reference(text: str, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    assert chunk(text, size, overlap) == list(reference(text, size, overlap))


def test_long_whitespace_takes_no_step_for_each() -> None:
    assert chunk(f"a{' ' * 20_000_000}b", 1000, 999) == ["a", "b"]


def test_pieces_beyond_bound_are_refused() -> None:
    assert len(chunk("a b c", 1, 0, 3)) == 3
    with pytest.raises(InvalidInput, match="at most 2 pieces"):
        chunk("a b c", 1, 0, 2)
