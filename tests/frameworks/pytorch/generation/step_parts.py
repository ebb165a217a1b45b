"""Parts of steps with random sizes, and their results with the cache that they leave."""

from collections.abc import Sequence as Rows
from typing import Any

import torch
from hypothesis import strategies as st

from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.scheduling.steps.sequence import Sequence, StepPart
from tests.frameworks.pytorch.generation.generating import request
from tests.support.models.causal_folders import VOCABULARY_SIZE

BLOCKS = 12
# Relative to the spread of the logits: sums are made in another order.
TOLERANCE = 1e-4

sizes = st.lists(st.tuples(st.integers(0, 50), st.sampled_from([1, 1, 1, 2, 5])), min_size=1, max_size=6)
"""Of parts: the tokens before, and those of the step. All fit into BLOCKS."""


def runner_of(model: Any) -> Any:
    """Return the PagedRunner of a model."""
    assert model._parts is not None
    return model._parts.runner


def plan_of(
    sizes: Rows[tuple[int, int]], blocks: Rows[int], *, is_scored: bool = False, adapters: Rows[int] = ()
) -> list[StepPart]:
    """Return parts of (tokens before, tokens) of one sequence each, whose blocks are taken from `blocks` in order.

    `adapters`: the adapter of each part, in turns; the base if there are none.
    """
    own = [adapters[number % len(adapters)] if adapters else 0 for number in range(len(sizes))]
    left = list(blocks)
    parts = []
    for number, (start, count) in enumerate(sizes):
        token_ids = [(5 * number + 7 * place) % VOCABULARY_SIZE for place in range(start + count)]
        sequence = Sequence(request(number, token_ids, adapter_id=own[number]), 0.0)
        needed = -(-(start + count) // BLOCK_TOKENS)
        sequence.blocks, left = left[:needed], left[needed:]
        parts.append(StepPart(sequence, start, count, is_scored=is_scored))
    return parts


def fill(runner: Any) -> None:
    """Write keys and values of earlier tokens to all blocks."""
    runner.cache._tensor.copy_(torch.randn(runner.cache._tensor.shape, generator=torch.Generator().manual_seed(0)))


def computed(runner: Any, parts: list[StepPart], compute: Any, threads: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits and the cache after the step."""
    fill(runner)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            return compute(parts).clone(), runner.cache._tensor.clone()
    finally:
        torch.set_num_threads(before)
