"""The key/value memory: copies in their order, and the places that a step's tokens are written to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frameworks.generation.blocks import Copy
from frameworks.generation.scheduler import Sequence, StepPart
from frameworks.generation.types import Sampling, SequenceRequest
from frameworks.pytorch.generation.kv_cache import BLOCK_TOKENS, CacheShape, KeyValueCache, LayoutMaker, causal_mask

CPU = torch.device("cpu")
SHAPE = CacheShape(layers=2, heads=3, head_size=4, dtype=torch.float32)


def part_of(blocks: list[int], start: int, count: int, *, is_last: bool = True) -> StepPart:
    token_ids = tuple(range(100, 100 + start + count + (not is_last)))
    sequence = Sequence(SequenceRequest(0, token_ids, 1, Sampling()), 0.0)
    sequence.blocks = blocks
    return StepPart(sequence, start, count)


def test_what_a_token_takes() -> None:
    assert SHAPE.token_bytes == 2 * 2 * 3 * 4 * 4
    cache = KeyValueCache(SHAPE, 5, CPU)
    assert cache.size_bytes == 5 * BLOCK_TOKENS * SHAPE.token_bytes
    assert [keys.shape for keys, _ in cache.layers] == [(5, 3, BLOCK_TOKENS, 4)] * 2
    assert all(not keys.any() and not values.any() for keys, values in cache.layers)


copies = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]), max_size=12)


@given(copies)
def test_copies_are_made_one_after_the_other(pairs: list[tuple[int, int]]) -> None:
    """As far as anybody can tell."""
    cache = KeyValueCache(SHAPE, 6, CPU)
    for keys, values in cache.layers:
        keys.copy_(torch.arange(6.0)[:, None, None, None].expand_as(keys))
        values.copy_(-keys)
    expected = list(range(6))
    for source, destination in pairs:
        expected[destination] = expected[source]
    cache.copy([Copy(*pair) for pair in pairs])
    for keys, values in cache.layers:
        assert keys[:, 0, 0, 0].tolist() == expected
        assert (keys == keys[:, :1, :1, :1]).all()
        assert torch.equal(values, -keys)


@given(copies)
def test_of_those_made_at_once_none_waits_for_another(pairs: list[tuple[int, int]]) -> None:
    """A device makes them in any order."""
    cache = KeyValueCache(SHAPE, 6, CPU)
    together: list[list[Copy]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_copy", together.append)
        cache.copy([Copy(*pair) for pair in pairs])
    assert [copy for each in together for copy in each] == pairs
    for each in together:
        destinations = [copy.destination for copy in each]
        assert len(set(destinations)) == len(destinations)
        assert all(copy.source not in destinations[:at] for at, copy in enumerate(each))


@pytest.mark.parametrize(
    ("start", "count", "cleared"),
    [
        (0, 1, [4]),
        (1, 1, []),
        (BLOCK_TOKENS - 1, 1, []),
        (BLOCK_TOKENS, 1, [1]),
        (0, BLOCK_TOKENS, []),
        (0, BLOCK_TOKENS + 1, [1]),
        (3, BLOCK_TOKENS, [1]),
        (BLOCK_TOKENS, BLOCK_TOKENS, []),
        (BLOCK_TOKENS + 2, 3, []),
    ],
)
def test_a_block_that_is_begun_and_not_filled_is_cleared(start: int, count: int, cleared: list[int]) -> None:
    """Whatever was left in it; of the others nothing is lost."""
    cache = KeyValueCache(SHAPE, 6, CPU)
    for keys, values in cache.layers:
        keys.fill_(torch.nan)
        values.fill_(torch.nan)
    cache.clear_begun([part_of([3], 2, 1), part_of([4, 1], start, count), part_of([5], 0, 1)])
    for keys, values in cache.layers:
        expected = {5, *cleared}
        assert {block for block in range(6) if not keys[block].any()} == expected
        assert {block for block in range(6) if not values[block].any()} == expected


def test_a_step_s_tokens_and_where_they_go() -> None:
    layouts = LayoutMaker(SHAPE, 2, CPU)
    text = part_of([4, 1], BLOCK_TOKENS + 2, 1)
    prompt = part_of([3, 0], BLOCK_TOKENS - 1, 3)
    unfinished = part_of([5], 0, 2, is_last=False)
    layout = layouts.make([text, prompt, unfinished])
    assert layout.token_ids.tolist() == [134, 131, 132, 133, 100, 101]
    assert layout.positions.tolist() == [34, 31, 32, 33, 0, 1]
    assert layout.texts == 1
    assert layout.last.tolist() == [0, 3]
    assert layout.last.dtype == torch.int64
    assert [(each.first, each.count, each.start, each.blocks.tolist()) for each in layout.prompts] == [
        (1, 3, 31, [3, 0]),
        (4, 2, 0, [5]),
    ]
    places = [(1, 2), (3, 31), (0, 0), (0, 1), (5, 0), (5, 1)]
    rows = [(block * SHAPE.heads + head) * BLOCK_TOKENS + at for block, at in places for head in range(SHAPE.heads)]
    assert layout.writes.tolist() == rows


def test_what_fills_a_step_up_goes_nowhere() -> None:
    """33 tokens are computed as 36; what is written, and whose next token is chosen, is as without."""
    layout = LayoutMaker(SHAPE, 2, CPU).make([part_of([4, 1], 5, 1), part_of([3, 0], 2, 32)])
    assert layout.tokens == 33
    assert layout.token_ids.tolist() == [105, *range(102, 134), 0, 0, 0]
    assert layout.positions.tolist() == [5, *range(2, 34), 0, 0, 0]
    assert len(layout.writes) == 33 * SHAPE.heads
    assert layout.last.tolist() == [0, 32]


def test_what_a_step_without_any_end_gives() -> None:
    layout = LayoutMaker(SHAPE, 2, CPU).make([part_of([0], 0, 4, is_last=False)])
    assert layout.last.tolist() == []
    assert layout.last.dtype == torch.int64


@pytest.mark.parametrize(("blocks", "is_one_piece"), [([0, 1], True), ([2, 5], True), ([0, 60], False)])
def test_blocks_that_lie_together_are_read_in_one_piece(blocks: list[int], is_one_piece: bool) -> None:
    rows = LayoutMaker(SHAPE, 2, CPU).make([part_of(blocks, BLOCK_TOKENS, 1)]).text_rows(None)
    assert isinstance(rows.blocks, slice) == is_one_piece


def test_only_the_blocks_within_a_window_are_read() -> None:
    layout = LayoutMaker(SHAPE, 2, CPU).make([part_of([7, 8, 9], 2 * BLOCK_TOKENS, 1)])
    assert [layout.text_rows(window).blocks for window in (1, 2, BLOCK_TOKENS + 1, BLOCK_TOKENS + 2, None)] == [
        slice(9, 10), slice(8, 10), slice(8, 10), slice(7, 10), slice(7, 10),
    ]  # fmt: skip
    assert layout.text_rows(2) is layout.text_rows(2)


@pytest.mark.parametrize("window", [None, 1, 2, 3, 9])
def test_the_mask_of_a_part(window: int | None) -> None:
    mask = causal_mask(3, 7, window, torch.float32, CPU)
    for row in range(3):
        own = 4 + row
        seen = [own - other < (window or 99) and other <= own for other in range(7)]
        assert [value == 0 for value in mask[row].tolist()] == seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_not_seen_has_no_share_in_any_dtype(dtype: torch.dtype) -> None:
    mask = causal_mask(2, 2, None, dtype, CPU)
    assert mask.dtype == dtype
    assert mask.isfinite().all()
    assert torch.softmax(mask, -1)[0].tolist() == [1, 0]
