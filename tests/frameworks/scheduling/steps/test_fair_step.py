"""How the sequences of several tenants share steps and blocks."""

from collections import Counter
from itertools import count

import pytest

from frameworks.core.tenants import Tenant
from frameworks.scheduling.steps.scheduler import StepScheduler
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import BLOCK, add, parts, running, scheduler_of, step

LIGHT, HEAVY, THIRD = Tenant("light"), Tenant("heavy", 3.0), Tenant("third")


class Flood:
    """Keep `callers` sequences of a tenant at a scheduler, with texts of these lengths in turn."""

    def __init__(
        self, scheduler: StepScheduler, tenant: Tenant, callers: int, lengths: tuple[tuple[int, int], ...], first: int
    ) -> None:
        """`lengths`: of prompt and text. `first`: the first sequence id."""
        self.scheduler, self.tenant, self.callers, self.lengths = scheduler, tenant, callers, lengths
        self._ids = count(first)

    def fill(self) -> None:
        ours = [one for one in self.scheduler.running if one.request.tenant is self.tenant]
        waiting = sum(len(queue.waiting) for queue in self.scheduler._queues.all() if queue.share.tenant is self.tenant)
        for _ in range(self.callers - len(ours) - waiting):
            number = next(self._ids)
            prompt, most = self.lengths[number % len(self.lengths)]
            add(self.scheduler, number, prompt, most, arrived_s=number, tenant=self.tenant)


def tokens_by_tenant(scheduler: StepScheduler, floods: list[Flood], steps: int) -> Counter[str]:
    """Return the computed tokens of each tenant over so many steps."""
    computed: Counter[str] = Counter()
    for _ in range(steps):
        for flood in floods:
            flood.fill()
        for part in step(scheduler).parts:
            computed[part.sequence.request.tenant.name] += part.num_tokens
    return computed


class TestShares:
    @pytest.mark.parametrize(
        ("heavy", "light"),
        [
            (((5, 20),), ((5, 20),)),
            (((3, 9), (30, 2), (1, 70)), ((40, 5), (2, 2), (8, 33))),
            (((2, 60),), ((60, 1),)),
        ],
    )
    def test_tokens_follow_weights(
        self, heavy: tuple[tuple[int, int], ...], light: tuple[tuple[int, int], ...]
    ) -> None:
        scheduler = scheduler_of(blocks=2000, max_sequences=16, max_num_batched_tokens=64)
        floods = [Flood(scheduler, HEAVY, 32, heavy, 0), Flood(scheduler, LIGHT, 32, light, 100_000)]
        computed = tokens_by_tenant(scheduler, floods, 1500)
        assert computed["heavy"] / computed["light"] == pytest.approx(3, rel=0.05)

    def test_tokens_follow_weights_without_free_blocks(self) -> None:
        scheduler = scheduler_of(blocks=40, max_sequences=16, max_num_batched_tokens=64)
        floods = [Flood(scheduler, HEAVY, 32, ((9, 20),), 0), Flood(scheduler, LIGHT, 32, ((5, 40),), 100_000)]
        computed = tokens_by_tenant(scheduler, floods, 1500)
        assert computed["heavy"] > 2 * computed["light"]

    def test_unused_tokens_are_used_by_other_tenant(self) -> None:
        scheduler = scheduler_of(max_sequences=4)
        add(scheduler, 0, 1, tenant=HEAVY)
        for i in range(1, 9):
            add(scheduler, i, 1, tenant=LIGHT)
        step(scheduler)
        for _ in range(5):
            plan = step(scheduler)
            assert len(plan.parts) == 4
            assert 0 in [number for number, _, _ in parts(plan)]

    def test_tenants_with_free_blocks_are_not_limited(self) -> None:
        """The lighter tenant is not limited while both fit; nothing is saved up for a later shortage."""
        scheduler = scheduler_of(blocks=500, max_sequences=4)
        add(scheduler, 0, 1, max_tokens=400, tenant=HEAVY)
        for i in range(1, 4):
            add(scheduler, i, 1, max_tokens=400, tenant=LIGHT)
        step(scheduler)
        for _ in range(100):
            assert len(step(scheduler).parts) == 4
        for i in range(4, 8):
            add(scheduler, i, 1, max_tokens=400, tenant=HEAVY)
        computed: Counter[str] = Counter()
        for _ in range(20):
            computed.update(part.sequence.request.tenant.name for part in step(scheduler).parts)
        assert computed["light"] == pytest.approx(20, abs=2)

    def test_paused_sequence_keeps_blocks_and_continues(self) -> None:
        scheduler, memory = scheduler_of(max_sequences=2), BlockMemory(64, BLOCK)
        for i in range(2):
            add(scheduler, i, 2, max_tokens=9, arrived_s=i, tenant=LIGHT)
        step(scheduler, memory)
        add(scheduler, 2, 2, max_tokens=3, tenant=THIRD)
        paused = 0
        while scheduler.running:
            plan = step(scheduler, memory)
            assert len(plan.parts) <= 2
            paused += 1 not in [number for number, _, _ in parts(plan)] and 1 in running(scheduler)
        assert paused == 3
        assert scheduler.stats(0).preemptions == 0

    def test_priority_orders_inside_one_tenant_only(self) -> None:
        scheduler = scheduler_of(max_sequences=2)
        add(scheduler, 0, 2, priority=1, tenant=LIGHT)
        add(scheduler, 1, 2, priority=1, tenant=LIGHT)
        add(scheduler, 2, 2, priority=9, tenant=THIRD)
        add(scheduler, 3, 2, priority=8, tenant=THIRD)
        step(scheduler)
        assert sorted(running(scheduler)) == [0, 3]


class TestNewcomer:
    @pytest.mark.parametrize("num_floods", [1, 2, 5])
    def test_newcomer_starts_in_next_step(self, num_floods: int) -> None:
        scheduler = scheduler_of(blocks=4000, max_sequences=8)
        floods = [
            Flood(scheduler, Tenant(f"t{i}", 3.0 + i), 16, ((3, 30), (20, 9)), 10_000 * (i + 1))
            for i in range(num_floods)
        ]
        tokens_by_tenant(scheduler, floods, 50)
        for number in range(20):
            tokens_by_tenant(scheduler, floods, 17)
            add(scheduler, number, 5, max_tokens=1, arrived_s=1e6, tenant=THIRD)
            assert (number, 0, 5) in parts(step(scheduler))

    def test_newcomer_preempts_youngest_without_free_blocks(self) -> None:
        scheduler, memory = scheduler_of(blocks=16, max_sequences=4), BlockMemory(16, BLOCK)
        for i in range(3):
            add(scheduler, i, 16, max_tokens=20, arrived_s=i, tenant=LIGHT)
        step(scheduler, memory)
        add(scheduler, 9, 8, max_tokens=4, arrived_s=9, tenant=THIRD)
        assert (9, 0, 8) in parts(step(scheduler, memory))
        assert running(scheduler) == [0, 1, 9]
        while scheduler.running:
            step(scheduler, memory)
        assert scheduler.stats(0).preemptions <= 3

    def test_sequence_is_preempted_once_for_newcomers(self) -> None:
        scheduler = scheduler_of(blocks=10, max_sequences=4)
        add(scheduler, 0, 34, max_tokens=6, tenant=LIGHT)
        step(scheduler)
        add(scheduler, 1, 8, max_tokens=1, tenant=THIRD)
        step(scheduler)
        assert scheduler.stats(0).waiting == 1
        step(scheduler)
        add(scheduler, 2, 8, max_tokens=1, tenant=THIRD)
        step(scheduler)
        assert running(scheduler) == [0]

    def test_large_prompt_of_other_tenant_starts_eventually(self) -> None:
        scheduler = scheduler_of(blocks=20, max_sequences=4)
        floods = [Flood(scheduler, LIGHT, 4, ((9, 3),), 100), Flood(scheduler, HEAVY, 4, ((5, 7),), 10_000)]
        tokens_by_tenant(scheduler, floods, 20)
        large = add(scheduler, 0, 70, max_tokens=2, tenant=THIRD)
        tokens_by_tenant(scheduler, floods, 400)
        assert large.num_generated_tokens == 2


class TestState:
    def test_idle_tenant_is_forgotten(self) -> None:
        scheduler = scheduler_of()
        for i in range(5):
            add(scheduler, i, 2, max_tokens=1, tenant=Tenant(f"t{i}"))
        while scheduler.running or scheduler.stats(0).waiting:
            step(scheduler)
        assert scheduler._queues.all() == []

    def test_preempted_tenant_holds_most_by_weight(self) -> None:
        scheduler = scheduler_of(blocks=8, max_sequences=4)
        add(scheduler, 0, 11, max_tokens=20, arrived_s=1, tenant=HEAVY)
        add(scheduler, 1, 11, max_tokens=20, arrived_s=0, tenant=LIGHT)
        while not scheduler.stats(0).preemptions:
            step(scheduler)
        assert running(scheduler) == [0]
