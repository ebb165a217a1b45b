"""Blocks that count caches of sequences: bytes of a block, state and growth."""

import pytest

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.steps.blocks import Chain
from frameworks.scheduling.steps.cache_blocks import CacheBlocks, CacheSize
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.step_cost import StepCost


def request(sequence_id: int, num_tokens: int) -> SequenceRequest:
    return SequenceRequest(sequence_id, tuple(range(num_tokens)), 64, Sampling(), priority=5)


@pytest.mark.parametrize("state_bytes", [0, 1, 320, 321])
def test_blocks_cover_state_and_tokens(state_bytes: int) -> None:
    size = CacheSize(state_bytes, 10)
    pool = CacheBlocks(size, 6_400, 128)
    scheduler = StepScheduler(pool, StepCost(512), 4, 512)
    for num_tokens in (1, 31, 32, 33, 100):
        sequence = scheduler.add(request(num_tokens, num_tokens))
        scheduler.plan()
        assert len(sequence.blocks) * pool.block_bytes >= size.total(num_tokens)
        scheduler.remove(sequence)
    assert pool.num_used == 0


def test_longest_sequence_fits() -> None:
    pool = CacheBlocks(CacheSize(500, 10), 3_200, 1000)
    assert pool.max_tokens == (10 - 2) * 32
    assert CacheSize(500, 10).total(pool.max_tokens) <= 3_200


def test_constant_cache_takes_one_block() -> None:
    pool = CacheBlocks(CacheSize(1000, 0), 3_999, 500)
    assert (pool.num_blocks, pool.block_bytes) == (3, 1000)
    scheduler = StepScheduler(pool, StepCost(512), 8, 4096)
    for i in range(4):
        scheduler.add(request(i, 100))
    scheduler.plan()
    assert len(scheduler.running) == 3
    assert all(len(sequence.blocks) == 1 for sequence in scheduler.running)
    assert scheduler.stats(0).waiting == 1


def test_memory_below_one_sequence_has_no_tokens() -> None:
    assert CacheBlocks(CacheSize(1000, 0), 999, 500).max_tokens == 0
    assert CacheBlocks(CacheSize(1000, 1), 900, 500).max_tokens == 0


def test_prefixes_are_not_shared() -> None:
    pool, chain = CacheBlocks(CacheSize(0, 1), 320, 100), Chain()
    tokens = list(range(64))
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.mark_pending(chain, tokens)
    pool.cache_full_blocks(chain, tokens, 64, blocks)
    assert pool.match([*tokens, 1]).blocks == []
    assert not pool.match([*tokens, 1]).is_pending
    pool.release(blocks)
    assert (pool.num_cached, pool.num_free) == (0, 10)


def test_whole_prompt_exceeds_token_budget() -> None:
    pool = CacheBlocks(CacheSize(0, 1), 3200, 1000)
    scheduler = StepScheduler(pool, StepCost(16), 4, 16, splits_prompts=False)
    scheduler.add(request(1, 100))
    [part] = scheduler.plan().parts
    assert (part.num_tokens, part.completes) == (100, True)
