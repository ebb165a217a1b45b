"""Prompts of one tenant are never found by another one, unless both share their caches."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.tenants import Tenant
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import BLOCK, scheduler_of, step

PRIVATE = [Tenant("a"), Tenant("b", 2.0)]
SHARING = [Tenant("c", shares_caches=True), Tenant("d", shares_caches=True)]
BLOCKS = 64

prompts = st.lists(st.integers(1, 2), min_size=1, max_size=20).map(tuple)
sequences = st.tuples(st.sampled_from([*PRIVATE, *SHARING]), prompts, st.booleans())


@given(st.lists(sequences, min_size=1, max_size=8))
def test_prefix_is_found_only_in_own_scope(script: list[tuple[Tenant, tuple[int, ...], bool]]) -> None:
    scheduler, memory = scheduler_of(blocks=BLOCKS), BlockMemory(BLOCKS, BLOCK)
    asked: list[tuple[Tenant, tuple[int, ...]]] = []
    for number, (tenant, prompt, is_awaited) in enumerate(script):
        scheduler.add(SequenceRequest(number, prompt, 1, Sampling(), priority=5, tenant=tenant))
        asked.append((tenant, prompt))
        while is_awaited and (scheduler.running or scheduler.stats(0).waiting):
            check(asked, step(scheduler, memory).begun)
    while scheduler.running or scheduler.stats(0).waiting:
        check(asked, step(scheduler, memory).begun)


def check(asked: list[tuple[Tenant, tuple[int, ...]]], begun: list[tuple[int, int]]) -> None:
    for number, cached_tokens in begun:
        tenant, prompt = asked[number]
        prefix = prompt[:cached_tokens]
        same = [
            other
            for i, (owner, other) in enumerate(asked)
            if i != number and owner.cache_scope == tenant.cache_scope and other[:cached_tokens] == prefix
        ]
        assert not cached_tokens or same, "these tokens were computed in another scope"


def test_sharing_tenants_find_prompts_of_each_other() -> None:
    scheduler, memory = scheduler_of(), BlockMemory(BLOCKS, BLOCK)
    found = []
    for number, tenant in enumerate([SHARING[0], PRIVATE[0], SHARING[1], PRIVATE[1], PRIVATE[0]]):
        scheduler.add(SequenceRequest(number, (1,) * (2 * BLOCK + 1), 1, Sampling(), priority=5, tenant=tenant))
        found += step(scheduler, memory).begun
    assert found == [(0, 0), (1, 0), (2, 2 * BLOCK), (3, 0), (4, 2 * BLOCK)]
