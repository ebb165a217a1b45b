"""Whatever comes, leaves and runs out of room: each text reads its own beginning only, goes on, and ends."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.generation.blocks import BlockPool
from frameworks.generation.scheduler import Sequence, StepPlan, StepScheduler
from frameworks.generation.step_cost import StepCost
from frameworks.generation.types import Sampling, SequenceRequest
from tests.frameworks.generation.block_memory import BlockMemory


@dataclass(frozen=True)
class Arrival:
    """Of the prompt the first `shared` tokens are the same for everybody. `leaves_after`: steps; None: never."""

    at_step: int
    length: int
    shared: int
    tail: tuple[int, ...]
    max_tokens: int
    priority: int
    leaves_after: int | None


@dataclass(frozen=True)
class Setting:
    block_tokens: int
    blocks: int
    max_sequences: int
    max_step_tokens: int
    arrivals: list[Arrival]
    generated: tuple[int, ...]
    """Which tokens are chosen, over and over."""
    seconds: tuple[float, ...] = field(default=())
    """What the steps take, over and over."""

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
    leaves_after=st.none() | st.integers(0, 30),
)
situations = st.builds(
    Setting,
    block_tokens=st.sampled_from([1, 2, 4]),
    blocks=st.integers(3, 20),
    max_sequences=st.integers(1, 6),
    max_step_tokens=st.integers(1, 24),
    arrivals=st.lists(arrivals, min_size=1, max_size=12),
    generated=st.lists(few_tokens, min_size=1, max_size=5).map(tuple),
    seconds=st.lists(st.floats(1e-6, 1), max_size=4).map(tuple),
)


class Run:
    """A scheduler over a memory that knows what lies where, and what must hold after each of its steps."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        pool = BlockPool(setting.blocks, setting.block_tokens)
        cost = StepCost(setting.max_step_tokens)
        self.scheduler = StepScheduler(pool, cost, setting.max_sequences, setting.max_step_tokens)
        self.memory = BlockMemory(setting.blocks, setting.block_tokens)
        self.leaving: dict[int, int] = {}
        self.begun: list[int] = []
        self.steps = 0
        self.under_way: list[Sequence] = []

    def add(self, number: int, arrival: Arrival) -> None:
        length = min(arrival.length, self.setting.most_tokens)
        shared = tuple((i * i) % 3 for i in range(arrival.shared))
        prompt = (shared + arrival.tail * 60)[:length]
        # A text and its prompt fit the memory; of the last token nothing is kept.
        most = min(arrival.max_tokens, self.setting.most_tokens - length + 1)
        request = SequenceRequest(
            number, prompt, most, Sampling(), priority=arrival.priority, arrived_s=float(arrival.at_step)
        )
        self.under_way.append(self.scheduler.add(request))
        if arrival.leaves_after is not None:
            self.leaving[number] = self.steps + arrival.leaves_after

    def step(self) -> None:
        scheduler = self.scheduler
        plan = scheduler.plan()
        self.check(plan)
        self.memory.carry_out(plan)
        scheduler.advance(plan)
        self.begun += [number for number, _ in plan.begun]
        for part in plan.parts:
            if part.completes:
                self.go_on(part.sequence)
        if self.setting.seconds:
            texts = sum(part.count == 1 for part in plan.parts)
            seconds = self.setting.seconds[self.steps % len(self.setting.seconds)]
            scheduler.cost.learn(texts, sum(part.count for part in plan.parts) - texts, seconds)
        self.steps += 1
        scheduler.check_integrity()

    def check(self, plan: StepPlan) -> None:
        scheduler, setting = self.scheduler, self.setting
        assert plan.parts, "there is work, and nothing is planned"
        assert len(scheduler.running) <= setting.max_sequences
        assert sum(part.count for part in plan.parts) <= max(setting.max_step_tokens, setting.max_sequences)
        assert scheduler.running[0] in [part.sequence for part in plan.parts], "the oldest goes on in every step"
        assert len({part.sequence.sequence_id for part in plan.parts}) == len(plan.parts)
        assert scheduler.running == sorted(scheduler.running)
        for part in plan.parts:
            assert part.sequence in scheduler.running
            assert 1 <= part.count <= part.sequence.missing
            assert part.start == part.sequence.computed
        is_long = [part.count > 1 for part in plan.parts]
        assert is_long == sorted(is_long), "those of one token come first"

    def go_on(self, sequence: Sequence) -> None:
        sequence.token_ids.append(self.setting.generated[len(sequence.token_ids) % len(self.setting.generated)])
        if sequence.generated >= sequence.request.max_tokens:
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.under_way.remove(sequence)

    def let_go(self) -> None:
        for sequence in list(self.under_way):
            if self.leaving.get(sequence.sequence_id, self.steps + 1) <= self.steps:
                self.end(sequence)
                self.scheduler.check_integrity()


@settings(max_examples=300)
@given(situations)
def test_each_reads_its_own_beginning_and_everybody_ends(setting: Setting) -> None:
    run = Run(setting)
    coming = sorted(enumerate(setting.arrivals), key=lambda each: each[1].at_step)
    clock = 0
    while coming or run.under_way:
        while coming and coming[0][1].at_step <= clock:
            run.add(*coming.pop(0))
        if run.under_way:
            run.step()
            run.let_go()
        clock += 1
        assert clock < 3000, "it goes on for ever"
    pool, scheduler = run.scheduler.pool, run.scheduler
    assert not scheduler.running
    assert not scheduler.waiting
    assert pool.used == 0
    assert len(run.begun) == len(set(run.begun)), "each is told to have begun once"
    pool.forget()
    assert (pool.free, pool.kept) == (setting.blocks, 0)
    assert not any(pool.match(shared).is_coming for shared in prompts(setting)), "what nobody computes is waited for"


def prompts(setting: Setting) -> list[tuple[int, ...]]:
    """With which anybody would wait for the first block of one of these texts."""
    return [tuple((i * i) % 3 for i in range(40)), *(each.tail * 60 for each in setting.arrivals)]


@settings(max_examples=60)
@given(situations)
def test_without_anybody_leaving_the_first_in_line_is_never_overtaken_by_its_equals(setting: Setting) -> None:
    """Texts of one priority that have nothing in common begin in the order in which they came."""
    run = Run(setting)
    for number, arrival in enumerate(setting.arrivals):
        length = min(arrival.length, setting.most_tokens)
        prompt = tuple(100 * (number + 1) + i for i in range(length))
        most = min(arrival.max_tokens, setting.most_tokens - length + 1)
        run.under_way.append(
            run.scheduler.add(SequenceRequest(number, prompt, most, Sampling(), priority=5, arrived_s=float(number)))
        )
    while run.under_way:
        run.step()
    assert run.begun == list(range(len(setting.arrivals)))
