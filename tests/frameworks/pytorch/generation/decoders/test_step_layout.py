"""The places of a step's tokens in the KV cache, and the places that they read."""

import pytest
import torch

from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheShape, KeyValueCache, causal_mask
from frameworks.pytorch.generation.decoders.step_layout import BlockViews, LayoutMaker
from tests.frameworks.pytorch.generation.parts import part_of

CPU = torch.device("cpu")
SHAPE = CacheShape(layers=2, heads=3, head_size=4, dtype=torch.float32)
CACHE = KeyValueCache(SHAPE, 61, CPU)
LAYOUTS = LayoutMaker(CACHE, 2, CPU)


def test_layout_places_tokens_in_blocks() -> None:
    text = part_of([4, 1], BLOCK_TOKENS + 2, 1)
    prompt = part_of([3, 0], BLOCK_TOKENS - 1, 3)
    unfinished = part_of([5], 0, 2, is_last=False)
    layout = LAYOUTS.make([text, prompt, unfinished])
    assert layout.token_ids.tolist() == [134, 131, 132, 133, 100, 101]
    assert layout.positions.tolist() == [34, 31, 32, 33, 0, 1]
    assert layout.num_decodes == 1
    assert layout.logit_rows.tolist() == [0, 3]
    assert layout.num_logits == 2
    assert layout.selected_rows is layout.logit_rows
    assert layout.logit_rows.dtype == torch.int64
    assert [(each.first, each.num_tokens, each.start, each.blocks.tolist()) for each in layout.prefills] == [
        (1, 3, 31, [3, 0]),
        (4, 2, 0, [5]),
    ]
    places = [(1, 2), (3, 31), (0, 0), (0, 1), (5, 0), (5, 1)]
    CACHE.write(1, layout.writes, torch.ones(6, 2 * SHAPE.heads, SHAPE.head_size))
    for states in CACHE.layers[1]:
        assert {(int(block), int(at)) for block, _, at, _ in states.nonzero()} == set(places)
        states.zero_()


def test_padding_tokens_are_not_stored() -> None:
    """33 tokens are computed as 36; writes and sampled rows stay the same."""
    layout = LAYOUTS.make([part_of([4, 1], 5, 1), part_of([3, 0], 2, 32)])
    assert layout.num_tokens == 33
    assert layout.token_ids.tolist() == [105, *range(102, 134), 0, 0, 0]
    assert layout.positions.tolist() == [5, *range(2, 34), 0, 0, 0]
    assert layout.writes.blocks is not None
    assert len(layout.writes.blocks) == 33
    assert layout.logit_rows.tolist() == [0, 32]


def test_step_without_ends_has_no_logits() -> None:
    layout = LAYOUTS.make([part_of([0], 0, 4, is_last=False)])
    assert layout.logit_rows.tolist() == []
    assert layout.logit_rows.dtype == torch.int64


@pytest.mark.parametrize(("blocks", "is_one_piece"), [([0, 1], True), ([2, 5], True), ([0, 60], False)])
def test_adjacent_blocks_are_read_as_one(blocks: list[int], is_one_piece: bool) -> None:
    rows = LAYOUTS.make([part_of(blocks, BLOCK_TOKENS, 1)]).decode_rows(None)
    assert isinstance(rows.blocks, BlockViews) == is_one_piece


def blocks_of(views: BlockViews) -> tuple[int, int]:
    """Return the first block and the end, by the addresses of the first layer's keys."""
    block_elements = SHAPE.heads * BLOCK_TOKENS * SHAPE.head_size
    low = views.keys[0].storage_offset() // block_elements
    return low, low + len(views.keys[0]) // SHAPE.heads


def test_blocks_outside_window_are_skipped() -> None:
    layout = LAYOUTS.make([part_of([7, 8, 9], 2 * BLOCK_TOKENS, 1)])
    views = [layout.decode_rows(window).blocks for window in (1, 2, BLOCK_TOKENS + 1, BLOCK_TOKENS + 2, None)]
    assert [blocks_of(each) for each in views if isinstance(each, BlockViews)] == [
        (9, 10), (8, 10), (8, 10), (7, 10), (7, 10),
    ]  # fmt: skip
    assert layout.decode_rows(2) is layout.decode_rows(2)


@pytest.mark.parametrize("window", [None, 1, 2, 3, 9])
def test_mask_of_prefill_part_is_causal(window: int | None) -> None:
    mask = causal_mask(4, 3, 7, window, torch.float32, CPU)
    for row in range(3):
        own = 4 + row
        seen = [own - other < (window or 99) and other <= own for other in range(7)]
        assert [value == 0 for value in mask[row].tolist()] == seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_masked_keys_have_zero_weight(dtype: torch.dtype) -> None:
    mask = causal_mask(0, 2, 2, None, dtype, CPU)
    assert mask.dtype == dtype
    assert mask.isfinite().all()
    assert torch.softmax(mask, -1)[0].tolist() == [1, 0]
