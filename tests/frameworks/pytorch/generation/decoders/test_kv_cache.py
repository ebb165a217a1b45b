"""The KV cache: copies keep their order, and blocks are cleared."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheShape, KeyValueCache
from frameworks.scheduling.steps.blocks import Copy
from tests.frameworks.pytorch.generation.parts import part_of

CPU = torch.device("cpu")
SHAPE = CacheShape(layers=2, heads=3, head_size=4, dtype=torch.float32)


def test_bytes_per_token_match_tensor() -> None:
    assert SHAPE.token_bytes == 2 * 2 * 3 * 4 * 4
    cache = KeyValueCache(SHAPE, 5, CPU)
    assert cache.size_bytes == 5 * BLOCK_TOKENS * SHAPE.token_bytes
    assert [keys.shape for keys, _ in cache.layers] == [(5, 3, BLOCK_TOKENS, 4)] * 2
    assert all(not keys.any() and not values.any() for keys, values in cache.layers)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_written_states_are_read_at_their_slots(is_transposed: bool) -> None:
    cache = KeyValueCache(SHAPE, 5, CPU, is_transposed=is_transposed)
    blocks, positions = [4, 1, 1, 0], [BLOCK_TOKENS + 3, 0, 1, 5]
    states = torch.randn(4, 2 * SHAPE.heads, SHAPE.head_size)
    cache.write(1, cache.slots(blocks, positions), states)
    keys, values = cache.layers[1]
    for index, (block, position) in enumerate(zip(blocks, positions, strict=True)):
        at = position % BLOCK_TOKENS
        assert torch.equal(keys[block, :, at], states[index, : SHAPE.heads])
        assert torch.equal(values[block, :, at], states[index, SHAPE.heads :])
    assert int(keys.count_nonzero()) + int(values.count_nonzero()) == states.numel()
    assert not any(each.any() for each in cache.layers[0])
    first_key = keys[4, 0]
    assert first_key.stride() == ((1, BLOCK_TOKENS) if is_transposed else (SHAPE.head_size, 1))


copies = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]), max_size=12)


@given(copies)
def test_copies_run_in_order(pairs: list[tuple[int, int]]) -> None:
    """The result equals copies in order."""
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
def test_concurrent_copies_are_independent(pairs: list[tuple[int, int]]) -> None:
    """A device runs the copies of one call in any order."""
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
def test_partial_block_is_cleared(start: int, count: int, cleared: list[int]) -> None:
    """Old values are cleared; other blocks keep theirs."""
    cache = KeyValueCache(SHAPE, 6, CPU)
    for keys, values in cache.layers:
        keys.fill_(torch.nan)
        values.fill_(torch.nan)
    cache.clear_begun([part_of([3], 2, 1), part_of([4, 1], start, count), part_of([5], 0, 1)])
    for keys, values in cache.layers:
        expected = {5, *cleared}
        assert {block for block in range(6) if not keys[block].any()} == expected
        assert {block for block in range(6) if not values[block].any()} == expected
