"""With one tenant, every decision is that of the scheduler for one tenant alone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.tenants import Tenant
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from frameworks.scheduling.steps.step_cost import StepCost
from tests.frameworks.scheduling.steps.one_tenant import OneTenantScheduler

AnyScheduler = StepScheduler | OneTenantScheduler
Event = tuple[str, int, int, int]

events = st.lists(
    st.tuples(st.sampled_from(["add", "add", "cancel", "fail", "step", "step"]), *[st.integers(1, 60)] * 3),
    min_size=1,
    max_size=60,
)


def decisions(scheduler: AnyScheduler, blocks: int, script: list[Event], tenant: Tenant) -> list[object]:
    """Return every plan of a script, and the counts after it."""
    seen: list[object] = []
    active: list[Sequence] = []
    for number, (kind, *numbers) in enumerate(script):
        if kind == "add":
            active.append(scheduler.add(_request(number, numbers, blocks * 2, tenant)))
        elif kind == "cancel" and active:
            scheduler.remove(active.pop(numbers[0] % len(active)))
        elif kind == "fail":
            scheduler.plan()
            scheduler.clear_cache()
            while active:
                scheduler.remove(active.pop())
        elif kind == "step" and active:
            seen.append(_step(scheduler, active, numbers))
    while active:
        seen.append(_step(scheduler, active, [1, 1, 1]))
    return seen


def _request(number: int, numbers: list[int], room: int, tenant: Tenant) -> SequenceRequest:
    length, most, priority = numbers
    prompt = tuple(i % (1 + number % 3) for i in range(min(length, room)))
    most = min(most, room - len(prompt) + 1)
    return SequenceRequest(
        number, prompt, most, Sampling(), priority=1 + priority % 9, arrived_s=float(number), tenant=tenant
    )


def _step(scheduler: AnyScheduler, active: list[Sequence], numbers: list[int]) -> object:
    plan: StepPlan = scheduler.plan()
    parts = [(part.sequence.sequence_id, part.start, part.num_tokens) for part in plan.parts]
    blocks = [list(part.sequence.blocks) for part in plan.parts]
    scheduler.advance(plan)
    for part in plan.parts:
        if part.completes:
            part.sequence.token_ids.append(numbers[0] % 3)
            if part.sequence.num_generated_tokens >= part.sequence.request.max_tokens:
                scheduler.remove(part.sequence)
                active.remove(part.sequence)
    texts = sum(count == 1 for _, _, count in parts)
    scheduler.cost.learn(texts, sum(count for _, _, count in parts) - texts, numbers[1] / 1000)
    stats = scheduler.stats(0)
    counts = stats.preemptions, stats.prompt_tokens, stats.prefix_hit_tokens, stats.waiting
    return parts, blocks, plan.copies, plan.begun, [one.sequence_id for one in scheduler.running], counts


class _CostWithoutPauses(StepCost):
    """The scheduler before tenants did not pause decodes."""

    def max_tokens_in_pause(self, texts: int) -> int:
        return 0


@settings(max_examples=200)
@given(events, st.integers(3, 30), st.integers(1, 6), st.integers(1, 40), st.sampled_from([0.1, 1.0, 7.0]))
def test_one_tenant_decisions_unchanged(
    script: list[Event], blocks: int, max_sequences: int, max_tokens: int, weight: float
) -> None:
    makers: list[type[AnyScheduler]] = [StepScheduler, OneTenantScheduler]
    ours, reference = (
        decisions(
            make(BlockPool(blocks, 2), _CostWithoutPauses(max_tokens), max_sequences, max_tokens),
            blocks,
            script,
            Tenant("t", weight),
        )
        for make in makers
    )
    assert ours == reference
