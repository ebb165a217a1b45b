"""Test shapes from requests."""

from typing import Any

import pytest

from app.protocols.shared.json.shapes import MAX_RANK, read_sizes
from frameworks.core.errors import InvalidInput


class Unprintable(list[int]):
    """A list whose text must not be made."""

    def __str__(self) -> str:
        raise AssertionError("the text of a long list was made")

    __repr__ = __str__


def test_sizes_become_tuple() -> None:
    assert read_sizes([2, 0, 3], "shape") == (2, 0, 3)
    assert read_sizes([1] * MAX_RANK, "shape") == (1,) * MAX_RANK


@pytest.mark.parametrize(
    ("sizes", "given"),
    [(None, "null"), ([-1], r"\[-1\]"), ([1.0], r"\[1\.0\]"), (Unprintable([1] * 1_000_000), "more than 32")],
)
def test_invalid_sizes_refused(sizes: Any, given: str) -> None:
    with pytest.raises(InvalidInput, match=f"shape: expected a list of at most 32 integers of 0 or more, got {given}$"):
        read_sizes(sizes, "shape")
