"""For any arrivals and cancellations of several tenants, steps are full, blocks are kept, and every text completes."""

from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from frameworks.generation.blocks import BlockPool
from frameworks.generation.scheduler import StepScheduler
from frameworks.generation.sequence import Sequence, StepPlan
from frameworks.generation.step_cost import StepCost
from frameworks.generation.types import Sampling, SequenceRequest
from frameworks.tenants import Tenant
from tests.frameworks.generation.block_memory import BlockMemory

TENANTS = (Tenant("a"), Tenant("b", 3.0), Tenant("c", 0.1), Tenant("d", 40.0))
BLOCK_TOKENS = 2


class TenantsMachine(RuleBasedStateMachine):
    """A scheduler over a recording cache. Texts of one `group` share a prefix."""

    @initialize(
        blocks=st.integers(4, 40), max_sequences=st.integers(1, 5), max_tokens=st.integers(1, 24), learned=st.booleans()
    )
    def begin(self, blocks: int, max_sequences: int, max_tokens: int, learned: bool) -> None:
        self.room = blocks * BLOCK_TOKENS
        self.max_sequences, self.max_tokens = max_sequences, max(max_tokens, max_sequences)
        cost = StepCost(max_tokens)
        if learned:
            cost.learn(4, 0, 0.02)
            cost.learn(4, 100, 0.03)
        self.scheduler = StepScheduler(BlockPool(blocks, BLOCK_TOKENS), cost, max_sequences, max_tokens)
        self.memory = BlockMemory(blocks, BLOCK_TOKENS)
        self.active: list[Sequence] = []
        self.num_added = 0
        self.begun: list[int] = []

    @rule(
        tenant=st.sampled_from(TENANTS),
        group=st.integers(0, 2),
        length=st.integers(1, 50),
        most=st.integers(1, 20),
        priority=st.integers(1, 9),
        times=st.integers(1, 4),
    )
    def add(self, tenant: Tenant, group: int, length: int, most: int, priority: int, times: int) -> None:
        for _ in range(times):
            prompt = (group,) * min(length, self.room)
            request = SequenceRequest(
                self.num_added,
                prompt,
                min(most, self.room - len(prompt) + 1),
                Sampling(),
                priority=priority,
                arrived_s=float(self.num_added),
                tenant=tenant,
            )
            self.active.append(self.scheduler.add(request))
            self.num_added += 1

    @precondition(lambda self: self.active)
    @rule(choice=st.integers(0, 1000))
    def cancel(self, choice: int) -> None:
        self.scheduler.remove(self.active.pop(choice % len(self.active)))

    @precondition(lambda self: self.active)
    @rule(times=st.integers(1, 10), held=st.sets(st.sampled_from([tenant.name for tenant in TENANTS])))
    def steps(self, times: int, held: set[str]) -> None:
        for _ in range(times):
            if self.active:
                self.step(held)

    def step(self, held: Collection[str] = ()) -> None:
        plan = self.scheduler.plan(held)
        self.check(plan, held)
        self.memory.carry_out(plan)
        self.scheduler.advance(plan)
        self.begun += [number for number, _ in plan.begun]
        for part in plan.parts:
            if part.completes:
                sequence = part.sequence
                sequence.token_ids.append(len(sequence.token_ids) % 3)
                if sequence.num_generated_tokens >= sequence.request.max_tokens:
                    self.scheduler.remove(sequence)
                    self.active.remove(sequence)
        self.scheduler.check_integrity()

    def check(self, plan: StepPlan, held: Collection[str]) -> None:
        planned = [part.sequence for part in plan.parts]
        assert planned, "there is work, and nothing is planned"
        assert len(planned) == len({one.sequence_id for one in planned}) <= self.max_sequences
        assert sum(part.num_tokens for part in plan.parts) <= self.max_tokens
        is_long = [part.num_tokens > 1 for part in plan.parts]
        assert is_long == sorted(is_long), "decodes come first"
        for part in plan.parts:
            assert part.sequence in self.scheduler.running
            assert part.start == part.sequence.num_computed_tokens
            assert 1 <= part.num_tokens <= part.sequence.num_uncomputed_tokens
        if not held:
            decodes = [one for one in self.scheduler.running if one.num_uncomputed_tokens == 1 and one not in planned]
            assert not decodes or len(planned) == self.max_sequences, "a place is free, and a decode is paused"
        are_held = {one.request.tenant.name in held for one in planned}
        assert len(are_held) == 1 or len(self.scheduler._queues.all()) == 1, "a held tenant is served beside another"
        assert {share.tenant.name for share in plan.costs} == {one.request.tenant.name for one in planned}

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
        assert self.scheduler.num_waiting == len(self.scheduler.running) == 0
        assert self.scheduler.pool.num_used == 0
        assert len(self.begun) == len(set(self.begun)), "each begins once"
        assert not any(self.scheduler.pool.match((group,) * 9).is_pending for group in range(3))


TenantsMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestTenants = TenantsMachine.TestCase
