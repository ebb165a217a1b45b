"""Attention by AMX equals torch's attention in float64; NumPy multiplies where the CPU has no AMX."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.compiled.cpu_features import lanes
from tests.frameworks.pytorch.compiled.attention_cases import BLOCKS, IN_ROW, TILES, Form, Text

LANES = 16
# Shares of the values are rounded to 8 bits: the result is off by 2^-8 of the largest value at most.
SHARES_ERROR = 2.0**-8 + 1e-5

# The stand-in for the tiles is compiled for 8 s.
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(lanes() != LANES, reason="no CPU with AMX has shorter vectors"),
]


def form(head_size: int = 64, group: int = 3, heads: int = 3, window: int = 0) -> Form:
    return Form(head_size, group, heads, torch.bfloat16, window, by_tiles=True)


def check(text: Text) -> None:
    largest = float(text.values.float().abs().max())
    assert float((text.whole() - text.expected()).abs().max()) < SHARES_ERROR * largest
    assert not TILES.errors
    assert not TILES.is_configured


@pytest.mark.parametrize("head_size", [32, 64, 96, 128])
def test_attention_of_head_sizes_matches_reference(head_size: int) -> None:
    check(Text(40, 50, form(head_size), IN_ROW))


@pytest.mark.parametrize(("group", "heads"), [(1, 1), (4, 2), (7, 7), (64, 64)])
def test_attention_of_head_groups_matches_reference(group: int, heads: int) -> None:
    check(Text(33, 5, form(group=group, heads=heads), IN_ROW))


@pytest.mark.parametrize("window", [1, 31, 32, 33, 100])
def test_attention_of_windows_matches_reference(window: int) -> None:
    check(Text(40, 60, form(window=window), IN_ROW))


@pytest.mark.parametrize("window", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("count", [20, 180])
def test_attention_to_later_tokens_matches_reference(count: int, window: int) -> None:
    check(Text(0, count, Form(64, 1, 1, torch.bfloat16, window, by_tiles=True, sees_later=True), IN_ROW))


@pytest.mark.parametrize("window", [0, 70])
def test_later_token_has_much_larger_scores(window: int) -> None:
    form = Form(64, 1, 1, torch.bfloat16, window, by_tiles=True, sees_later=True)
    check(with_larger_keys(Text(0, 150, form, IN_ROW), 140, 64))


@settings(max_examples=10)
@given(
    start=st.integers(0, 100),
    count=st.integers(1, 60),
    group=st.integers(1, 5),
    window=st.just(0) | st.integers(1, 120),
    order=st.permutations(range(BLOCKS)),
)
def test_attention_of_any_text_matches_reference(
    start: int, count: int, group: int, window: int, order: list[int]
) -> None:
    check(Text(start, count, form(32, group, group, window), order))


@pytest.mark.isa
@settings(max_examples=10)
@given(
    first=st.integers(0, 39), tokens=st.integers(1, 8), heads=st.integers(1, 4), window=st.just(0) | st.integers(1, 90)
)
def test_row_does_not_depend_on_its_tile(first: int, tokens: int, heads: int, window: int) -> None:
    """The same bits come from tiles of any rows, so a sequence is the same alone and among others."""
    text = Text(50, 47, form(32, 4, 4, window), IN_ROW)
    other = Text(50, 47, form(32, 4, heads, window), IN_ROW)
    assert torch.equal(other.found(first, tokens), text.whole()[first : first + tokens])


@pytest.mark.parametrize("window", [0, 300])
def test_attention_of_many_keys_matches_reference(window: int) -> None:
    check(Text(1020, 50, form(window=window), IN_ROW))


def with_larger_keys(text: Text, key: int, factor: int) -> Text:
    """Multiply four keys, in the sequence and in the cache."""
    cached, first = text.cache[0].view(BLOCKS, 2, -1, 32), key % 32
    text.keys[key : key + 4] *= factor
    cached[key // 32, 1, :, first : first + 4] *= factor
    return text


@pytest.mark.parametrize(("start", "key", "factor"), [(0, 40, 8), (0, 40, 64), (1000, 1028, 1), (1000, 1028, 64)])
def test_later_scores_are_much_larger(start: int, key: int, factor: int) -> None:
    """A row's first score is the reference of the others, unless they are much larger.

    The later key is not among those that are added at once: earlier sums are scaled.
    """
    check(with_larger_keys(Text(start, 90, form(), IN_ROW), key, factor))


@pytest.mark.parametrize("factor", [64, 1000])
def test_first_score_differs_from_all_others(factor: int) -> None:
    """It is the reference of all, be it far above them or far below."""
    check(with_larger_keys(Text(0, 90, form(), IN_ROW), 0, factor))


@pytest.mark.isa
@pytest.mark.parametrize("key", [33, pytest.param(1030, marks=pytest.mark.extended)])
def test_row_with_larger_scores_leaves_others_alone(key: int) -> None:
    """The rows of a tile get another softmax reference one by one."""
    text = with_larger_keys(Text(key - 20, 60, form(), IN_ROW), key, 64)
    found = text.whole()
    for row in range(0, 60, 7):
        assert torch.equal(text.found(row, 1), found[row : row + 1]), row


def test_elements_after_the_sequence_are_not_read() -> None:
    """A block that another sequence had holds any values."""
    text = Text(0, 40, form(), IN_ROW)
    expected = text.whole()
    states = text.cache[1].view(BLOCKS, 2, 32, 64)
    states[1, 1, 8:] = torch.nan
    keys = text.cache[0].view(BLOCKS, 2, 64, 32)
    keys[1, 1, :, 8:] = torch.nan
    assert torch.equal(text.whole(), expected)


@pytest.mark.parametrize("key", [0, 40])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_failed_key_fails_later_rows_alone(key: int, number: float) -> None:
    text = Text(0, 60, form(), IN_ROW)
    text.cache[0].view(BLOCKS, 2, 64, 32)[key // 32, 1, :, key % 32] = number
    found = text.whole()
    assert found[:key].isfinite().all()
    assert not found[key:].isfinite().any()


def test_other_head_sizes_are_computed_by_vectors() -> None:
    text = Text(40, 50, form(80), IN_ROW)
    assert torch.equal(text.whole(), Text(40, 50, Form(80, 3, 3, torch.bfloat16), IN_ROW).whole())
