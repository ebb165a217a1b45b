"""Bounds of the parts of a long text."""

from functools import partial

import pytest

from frameworks.core.errors import InvalidInput
from frameworks.tasks.parts import MAX_READ_TOKENS, check_parts

check = partial(check_parts, field="text", shared_field="parameters.stride")


@pytest.mark.parametrize(
    ("tokens", "available", "shared"), [(0, 8, 0), (8, 8, 8), (9, 8, 7), (1_000, 8, 0), (MAX_READ_TOKENS // 2, 256, 0)]
)
def test_check_parts_allows_texts_within_bounds(tokens: int, available: int, shared: int) -> None:
    check(tokens, available, shared, available + 2 if available < 256 else available)


def test_parts_that_share_all_tokens_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"parameters\.stride: expected less than 8, .* got 8; lower it"):
        check(9, 8, 8, 10)


@pytest.mark.parametrize("over", [0, 1])
def test_tokens_of_all_parts_are_bounded(over: int) -> None:
    """A text of n tokens in parts of 8 that share 7 has n - 7 parts."""
    tokens = MAX_READ_TOKENS // 8 + 7 + over
    if not over:
        check(tokens, 8, 7, 8)
        return
    with pytest.raises(InvalidInput, match=r"text: expected parts of up to 524288 tokens in all, got 65537 of 8"):
        check(tokens, 8, 7, 8)
