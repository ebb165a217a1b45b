"""Cut texts into pieces."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from extensions.pipelines.kinds import TEXTS, Kind, Values
from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.contract import MAX_ROWS, Port, StepFault
from frameworks.core.errors import InvalidInput
from frameworks.types import TensorType

_WORD = re.compile(r"\S")


class Chunk:
    """Cut each text into pieces of at most `chunk_size` characters, between words where there are any.

    Outputs, one row for each piece: `chunks` (text) and `rows` int64 [k], the row of its text. A text without words
    has one empty piece.
    """

    options: ClassVar = frozenset({"chunk_size", "overlap", "max_rows"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry) -> None:
        self._size = entry.chunk_size or 1000
        self._overlap = entry.overlap or 0
        self._max_rows = entry.max_rows or MAX_ROWS
        if self._overlap >= self._size:
            raise StepFault("overlap", f"expected fewer characters than chunk_size, {self._size}, got {self._overlap}")

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {"text": Port(TEXTS)}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        return {"chunks": TEXTS, "rows": TensorType("int64", (-1,))}

    def run(self, values: Values) -> Values:
        pieces: list[str] = []
        rows: list[int] = []
        for row, text in enumerate(values["text"].tolist()):
            for piece in _pieces(text, self._size, self._overlap):
                if len(pieces) == self._max_rows:
                    raise InvalidInput(
                        "text", f"expected texts of at most {self._max_rows} pieces, got more; send less"
                    )
                pieces.append(piece)
                rows.append(row)
        chunks = np.empty(len(pieces), dtype=object)
        chunks[:] = pieces
        return {"chunks": chunks, "rows": np.array(rows, np.int64)}


def _pieces(text: str, size: int, overlap: int) -> Iterator[str]:
    """Yield the pieces of a text. Each begins at most `overlap` characters before the end of the one before it."""
    start, length = 0, len(text)
    if not text.strip():
        yield ""
        return
    while start < length:
        end = min(start + size, length)
        if end < length and not text[end].isspace():
            window = text[start:end]
            words = window.rsplit(None, 1)
            # A word that is longer than a piece is cut.
            if len(words) == 2 and not window[-1].isspace():
                end -= len(words[1])
        piece = text[start:end].strip()
        if piece:
            yield piece
        if end == length:
            return
        if not piece:
            # To the first window that has a word: one after the other would take a step for each space.
            step = size - overlap
            word = _WORD.search(text, end)
            if word is None:
                return
            start += ((word.start() - end) // step + 1) * step
            continue
        start = max(end - overlap, start + 1) if overlap else end
        if overlap and 0 < start < end and not text[start - 1].isspace() and not text[start].isspace():
            start += len(text[start:end].split(None, 1)[0])  # to the beginning of a word
