"""For any arrivals and cancellations, each text reads only its own prefix, steps are full, and every text completes."""

from collections.abc import Collection
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from frameworks.core.tenants import Tenant
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan
from frameworks.scheduling.steps.step_cost import StepCost
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import add, scheduler_of, step

TENANTS = (Tenant("a"), Tenant("b", 3.0), Tenant("c", 0.1), Tenant("d", 40.0))
SHARED = tuple((i * i) % 3 for i in range(60))

few_tokens = st.integers(0, 2)


class StepsMachine(RuleBasedStateMachine):
    """A scheduler over a recording cache, for one tenant or several."""

    @initialize(
        num_tenants=st.sampled_from([1, 1, 2, 4]),
        block_tokens=st.sampled_from([1, 2, 4]),
        blocks=st.integers(3, 40),
        max_sequences=st.integers(1, 6),
        max_tokens=st.integers(1, 60),
        generated=st.lists(few_tokens, min_size=1, max_size=5),
        seconds=st.lists(st.floats(1e-6, 1), max_size=4),
        proposed=st.lists(st.lists(few_tokens, max_size=6).map(tuple), min_size=1, max_size=4),
    )
    def begin(
        self,
        *,
        num_tenants: int,
        block_tokens: int,
        blocks: int,
        max_sequences: int,
        max_tokens: int,
        generated: list[int],
        seconds: list[float],
        proposed: list[tuple[int, ...]],
    ) -> None:
        """`generated`: sampled tokens, `seconds`: of the steps, `proposed`: for a text in a step; all repeated."""
        self.tenants = TENANTS[:num_tenants]
        self.room, self.blocks = blocks * block_tokens, blocks
        self.max_sequences, self.max_tokens = max_sequences, max(max_tokens, max_sequences)
        self.generated, self.seconds, self.proposed = generated, seconds, proposed
        pool = BlockPool(blocks, block_tokens)
        self.scheduler = StepScheduler(pool, StepCost(max_tokens), max_sequences, max_tokens)
        self.memory = BlockMemory(blocks, block_tokens)
        self.active: list[Sequence] = []
        self.tails: set[tuple[int, ...]] = set()
        self.num_added = self.num_steps = 0
        self.begun: list[int] = []
        self.has_paused = False

    @rule(
        tenant=st.integers(0, 3),
        length=st.integers(1, 60),
        shared=st.integers(0, 60),
        tail=st.lists(few_tokens, min_size=1, max_size=8).map(tuple),
        most=st.integers(1, 40),
        priority=st.integers(1, 9),
        times=st.integers(1, 4),
    )
    def add(
        self, tenant: int, length: int, shared: int, tail: tuple[int, ...], most: int, priority: int, times: int
    ) -> None:
        """The first `shared` prompt tokens are the same in every prompt."""
        prompt = (SHARED[:shared] + tail * 60)[: min(length, self.room)]
        self.tails.add(tail)
        # Prompt and text fit the cache; the last token needs no place.
        most = min(most, self.room - len(prompt) + 1)
        options: dict[str, Any] = {"priority": priority, "tenant": self.tenants[tenant % len(self.tenants)]}
        for _ in range(times):
            added = add(self.scheduler, self.num_added, prompt, most, arrived_s=float(self.num_added), **options)
            self.active.append(added)
            self.num_added += 1

    @precondition(lambda self: self.active)
    @rule(choice=st.integers(0, 1000))
    def cancel(self, choice: int) -> None:
        self.scheduler.remove(self.active.pop(choice % len(self.active)))
        self.scheduler.check_integrity()

    @precondition(lambda self: self.active)
    @rule(times=st.integers(1, 10), held=st.sets(st.sampled_from([tenant.name for tenant in TENANTS])))
    def steps(self, times: int, held: set[str]) -> None:
        for _ in range(times):
            if self.active:
                self.step(held)

    def step(self, held: Collection[str] = ()) -> None:
        plan = self.scheduler.plan(held)
        self.check(plan, held)
        self.propose(plan)
        self.memory.carry_out(plan)
        self.scheduler.advance(plan)
        self.begun += [number for number, _ in plan.begun]
        for part in [part for part in plan.parts if part.completes]:
            self.append_tokens(part)
        if self.seconds:
            texts = sum(part.num_tokens == 1 for part in plan.parts)
            others = sum(part.num_tokens for part in plan.parts) - texts
            self.scheduler.cost.learn(texts, others, self.seconds[self.num_steps % len(self.seconds)])
        self.num_steps += 1
        self.scheduler.check_integrity()

    def check(self, plan: StepPlan, held: Collection[str]) -> None:
        planned = [part.sequence for part in plan.parts]
        running = self.scheduler.running
        assert planned, "there is work, and nothing is planned"
        assert len(planned) == len({one.sequence_id for one in planned}) <= self.max_sequences
        assert sum(part.num_tokens for part in plan.parts) <= self.max_tokens
        is_long = [part.num_tokens > 1 for part in plan.parts]
        assert is_long == sorted(is_long), "decodes come first"
        for part in plan.parts:
            assert part.sequence in running
            assert part.start == part.sequence.num_computed_tokens
            assert 1 <= part.num_tokens <= part.sequence.num_uncomputed_tokens
        was_paused, self.has_paused = self.has_paused, self.is_pause()
        if len(self.tenants) == 1:
            assert len(running) <= self.max_sequences
            assert running == sorted(running)
            assert self.has_paused or running[0] in planned, "the oldest progresses unless the decodes pause"
        if self.has_paused:
            assert not was_paused, "the decodes pause twice in a row"
            assert any(part.completes for part in plan.parts), "the decodes pause, and no prompt completes"
        elif not held:
            decodes = [one for one in running if one.num_uncomputed_tokens == 1 and one not in planned]
            assert not decodes or len(planned) == self.max_sequences, "a place is free, and a decode is paused"
        are_held = {one.request.tenant.name in held for one in planned}
        assert len(are_held) == 1 or len(self.scheduler._queues.all()) == 1, "a held tenant is served beside another"
        assert {share.tenant.name for share in plan.costs} == {one.request.tenant.name for one in planned}

    def is_pause(self) -> bool:
        """Whether the decodes of the planned step pause for a prompt, as only those of a single tenant do."""
        return self.scheduler._queues.only is not None and self.scheduler._has_paused

    def propose(self, plan: StepPlan) -> None:
        preemptions = self.scheduler.stats(0).preemptions
        proposals: dict[int, tuple[int, ...]] = {}
        for place, part in enumerate(plan.parts):
            sequence = part.sequence
            room = sequence.request.max_tokens - sequence.num_generated_tokens - 1
            is_decode = part.num_tokens == 1 and part.completes
            tokens = self.proposed[(self.num_steps + place) % len(self.proposed)] if is_decode else ()
            proposals[sequence.sequence_id] = tokens[:room]
        self.scheduler.add_proposals(plan, proposals)
        assert self.scheduler.stats(0).preemptions == preemptions, "proposals preempt nothing"
        assert sum(part.num_tokens for part in plan.parts) <= self.max_tokens

    def append_tokens(self, part: StepPart) -> None:
        """Accept proposed tokens while they are those that follow, and append one that follows them."""
        token_ids = part.sequence.token_ids
        for place in range(part.num_sampled if part.proposed else 1):
            if part.proposed:
                self.scheduler.confirm(part.sequence)
            token_ids.append(self.generated[len(token_ids) % len(self.generated)])
            if part.sequence.num_generated_tokens >= part.sequence.request.max_tokens:
                self.scheduler.remove(part.sequence)
                self.active.remove(part.sequence)
                break
            if place == len(part.proposed) or token_ids[-1] != part.proposed[place]:
                break

    @invariant()
    def tenants_without_work_are_dropped(self) -> None:
        kept = {queue.share.tenant.name for queue in self.scheduler._queues.all()}
        assert kept == {one.request.tenant.name for one in self.active}

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(100 * (len(self.active) + 1) * (self.room + 1)):
            if not self.active:
                break
            self.step()
        assert not self.active, "the sequences never complete"
        assert self.scheduler.stats(0).waiting == len(self.scheduler.running) == 0
        assert len(self.begun) == len(set(self.begun)), "each begins once"
        pool = self.scheduler.pool
        assert pool.num_used == 0
        pool.clear_cache()
        assert (pool.num_free, pool.num_cached) == (self.blocks, 0)
        prompts = [SHARED, *(tail * 60 for tail in self.tails)]
        assert not any(pool.match(prompt).is_pending for prompt in prompts), "no sequence computes a pending block"


StepsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestSteps = StepsMachine.TestCase


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(3, 20),
    st.integers(1, 6),
    st.integers(1, 24),
)
def test_equal_priority_starts_in_arrival_order(
    lengths: list[tuple[int, int]], blocks: int, max_sequences: int, max_tokens: int
) -> None:
    """`lengths`: of prompts without shared tokens, and of their texts."""
    scheduler = scheduler_of(blocks=blocks, max_sequences=max_sequences, max_num_batched_tokens=max_tokens)
    room = blocks * 4
    for number, (length, most) in enumerate(lengths):
        length = min(length, room)  # noqa: PLW2901
        add(scheduler, number, length, min(most, room - length + 1), arrived_s=float(number))
    begun = []
    while scheduler.running or scheduler.stats(0).waiting:
        begun += [number for number, _ in step(scheduler).begun]
    assert begun == list(range(len(lengths)))
