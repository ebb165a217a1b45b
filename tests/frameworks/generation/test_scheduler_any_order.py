"""For any arrivals, cancellations and cache size, each text reads only its own prefix, progresses, and completes."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.generation.blocks import BlockPool
from frameworks.generation.scheduler import StepScheduler
from frameworks.generation.sequence import Sequence, StepPart, StepPlan
from frameworks.generation.step_cost import StepCost
from frameworks.generation.types import Sampling, SequenceRequest
from tests.frameworks.generation.block_memory import BlockMemory


@dataclass(frozen=True)
class Arrival:
    """The first `shared` prompt tokens are the same in every prompt. `cancelled_after`: steps; None: never."""

    at_step: int
    length: int
    shared: int
    tail: tuple[int, ...]
    max_tokens: int
    priority: int
    cancelled_after: int | None


@dataclass(frozen=True)
class Setting:
    block_tokens: int
    blocks: int
    max_sequences: int
    max_num_batched_tokens: int
    arrivals: list[Arrival]
    generated: tuple[int, ...]
    """Sampled tokens, repeated."""
    seconds: tuple[float, ...] = field(default=())
    """Seconds of the steps, repeated."""
    proposed: tuple[tuple[int, ...], ...] = field(default=((),))
    """Tokens proposed for a text in a step, repeated."""

    @property
    def most_tokens(self) -> int:
        return self.blocks * self.block_tokens


few_tokens = st.integers(0, 2)
arrivals = st.builds(
    Arrival,
    at_step=st.integers(0, 25),
    length=st.integers(1, 60),
    shared=st.integers(0, 60),
    tail=st.lists(few_tokens, min_size=1, max_size=8).map(tuple),
    max_tokens=st.integers(1, 40),
    priority=st.integers(1, 9),
    cancelled_after=st.none() | st.integers(0, 30),
)
situations = st.builds(
    Setting,
    block_tokens=st.sampled_from([1, 2, 4]),
    blocks=st.integers(3, 20),
    max_sequences=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 24),
    arrivals=st.lists(arrivals, min_size=1, max_size=12),
    generated=st.lists(few_tokens, min_size=1, max_size=5).map(tuple),
    seconds=st.lists(st.floats(1e-6, 1), max_size=4).map(tuple),
    proposed=st.lists(st.lists(few_tokens, max_size=6).map(tuple), min_size=1, max_size=4).map(tuple),
)


class Run:
    """A scheduler over a recording cache, with the checks after each step."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        pool = BlockPool(setting.blocks, setting.block_tokens)
        cost = StepCost(setting.max_num_batched_tokens)
        self.scheduler = StepScheduler(pool, cost, setting.max_sequences, setting.max_num_batched_tokens)
        self.memory = BlockMemory(setting.blocks, setting.block_tokens)
        self.cancel_at_step: dict[int, int] = {}
        self.begun: list[int] = []
        self.steps = 0
        self.num_proposed = 0
        self.active: list[Sequence] = []

    def add(self, number: int, arrival: Arrival) -> None:
        length = min(arrival.length, self.setting.most_tokens)
        shared = tuple((i * i) % 3 for i in range(arrival.shared))
        prompt = (shared + arrival.tail * 60)[:length]
        # Prompt and text fit the cache; the last token needs no place.
        most = min(arrival.max_tokens, self.setting.most_tokens - length + 1)
        request = SequenceRequest(
            number, prompt, most, Sampling(), priority=arrival.priority, arrived_s=float(arrival.at_step)
        )
        self.active.append(self.scheduler.add(request))
        if arrival.cancelled_after is not None:
            self.cancel_at_step[number] = self.steps + arrival.cancelled_after

    def step(self) -> None:
        scheduler = self.scheduler
        plan = scheduler.plan()
        self.check(plan)
        self.propose(plan)
        self.memory.carry_out(plan)
        scheduler.advance(plan)
        self.begun += [number for number, _ in plan.begun]
        for part in [part for part in plan.parts if part.completes]:
            self.append_tokens(part)
        if self.setting.seconds:
            texts = sum(part.num_tokens == 1 for part in plan.parts)
            seconds = self.setting.seconds[self.steps % len(self.setting.seconds)]
            scheduler.cost.learn(texts, sum(part.num_tokens for part in plan.parts) - texts, seconds)
        self.steps += 1
        scheduler.check_integrity()

    def check(self, plan: StepPlan) -> None:
        scheduler, setting = self.scheduler, self.setting
        assert plan.parts, "there is work, and nothing is planned"
        assert len(scheduler.running) <= setting.max_sequences
        assert sum(part.num_tokens for part in plan.parts) <= max(setting.max_num_batched_tokens, setting.max_sequences)
        assert scheduler.running[0] in [part.sequence for part in plan.parts], "the oldest progresses in every step"
        assert len({part.sequence.sequence_id for part in plan.parts}) == len(plan.parts)
        assert scheduler.running == sorted(scheduler.running)
        for part in plan.parts:
            assert part.sequence in scheduler.running
            assert 1 <= part.num_tokens <= part.sequence.num_uncomputed_tokens
            assert part.start == part.sequence.num_computed_tokens
        is_long = [part.num_tokens > 1 for part in plan.parts]
        assert is_long == sorted(is_long), "decodes come first"

    def propose(self, plan: StepPlan) -> None:
        preemptions = self.scheduler.preemptions
        proposals = {
            part.sequence.sequence_id: self.setting.proposed[(self.steps + place) % len(self.setting.proposed)]
            for place, part in enumerate(plan.parts)
            if part.num_tokens == 1 and part.completes
        }
        for sequence in [part.sequence for part in plan.parts]:
            room = sequence.request.max_tokens - sequence.num_generated_tokens - 1
            proposals[sequence.sequence_id] = proposals.get(sequence.sequence_id, ())[:room]
        self.scheduler.add_proposals(plan, proposals)
        assert self.scheduler.preemptions == preemptions, "proposals preempt nothing"
        assert sum(part.num_tokens for part in plan.parts) <= max(
            self.setting.max_num_batched_tokens, self.setting.max_sequences
        )
        self.num_proposed += sum(len(part.proposed) for part in plan.parts)

    def append_tokens(self, part: StepPart) -> None:
        """Accept proposed tokens while they are those that follow, and append one that follows them."""
        for place in range(part.num_sampled if part.proposed else 1):
            if part.proposed:
                self.scheduler.confirm(part.sequence)
            self.append_token(part.sequence)
            is_over = part.sequence not in self.active
            if is_over or place == len(part.proposed) or part.sequence.token_ids[-1] != part.proposed[place]:
                break

    def append_token(self, sequence: Sequence) -> None:
        sequence.token_ids.append(self.setting.generated[len(sequence.token_ids) % len(self.setting.generated)])
        if sequence.num_generated_tokens >= sequence.request.max_tokens:
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.active.remove(sequence)

    def cancel_due(self) -> None:
        for sequence in list(self.active):
            if self.cancel_at_step.get(sequence.sequence_id, self.steps + 1) <= self.steps:
                self.end(sequence)
                self.scheduler.check_integrity()


@settings(max_examples=60)
@given(situations)
def test_sequences_read_own_prefix_and_complete(setting: Setting) -> None:
    run = Run(setting)
    arriving = sorted(enumerate(setting.arrivals), key=lambda each: each[1].at_step)
    clock = 0
    while arriving or run.active:
        while arriving and arriving[0][1].at_step <= clock:
            run.add(*arriving.pop(0))
        if run.active:
            run.step()
            run.cancel_due()
        clock += 1
        assert clock < 3000, "the sequences never complete"
    pool, scheduler = run.scheduler.pool, run.scheduler
    assert not scheduler.running
    assert not scheduler.num_waiting
    assert pool.num_used == 0
    assert len(run.begun) == len(set(run.begun)), "each begins once"
    pool.clear_cache()
    assert (pool.num_free, pool.num_cached) == (setting.blocks, 0)
    assert not any(pool.match(shared).is_pending for shared in prompts(setting)), (
        "a block is pending that no sequence computes"
    )


def prompts(setting: Setting) -> list[tuple[int, ...]]:
    """Return prompts that would wait for the first block of one of these texts."""
    return [tuple((i * i) % 3 for i in range(40)), *(each.tail * 60 for each in setting.arrivals)]


@settings(max_examples=30)
@given(situations)
def test_equal_priority_starts_in_arrival_order(setting: Setting) -> None:
    """Return texts of one priority without shared tokens and cancellations."""
    run = Run(setting)
    for number, arrival in enumerate(setting.arrivals):
        length = min(arrival.length, setting.most_tokens)
        prompt = tuple(100 * (number + 1) + i for i in range(length))
        most = min(arrival.max_tokens, setting.most_tokens - length + 1)
        run.active.append(
            run.scheduler.add(SequenceRequest(number, prompt, most, Sampling(), priority=5, arrived_s=float(number)))
        )
    while run.active:
        run.step()
    assert run.begun == list(range(len(setting.arrivals)))
