"""A scheduler with small blocks, and helpers to add sequences and run steps."""

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.generation.media import PromptMedia
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from frameworks.scheduling.steps.step_cost import StepCost
from tests.frameworks.scheduling.steps.block_memory import BlockMemory

BLOCK = 4


def scheduler_of(
    *,
    blocks: int = 64,
    max_sequences: int = 8,
    max_num_batched_tokens: int = 64,
    ageing_s: float = 1.0,
    max_scored_tokens: int = 16,
) -> StepScheduler:
    return StepScheduler(
        BlockPool(blocks, BLOCK),
        StepCost(max_num_batched_tokens),
        max_sequences,
        max_num_batched_tokens,
        ageing_s=ageing_s,
        max_scored_tokens=max_scored_tokens,
    )


def add(
    scheduler: StepScheduler,
    sequence_id: int,
    prompt: int | tuple[int, ...],
    max_tokens: int = 20,
    *,
    priority: int = 5,
    arrived_s: float = 0.0,
    tenant: Tenant = DEFAULT_TENANT,
    prompt_logprobs: int | None = None,
    adapter_id: int = 0,
    media: PromptMedia | None = None,
) -> Sequence:
    """`prompt`: the tokens, or their number; then no two sequences share a token."""
    if isinstance(prompt, int):
        prompt = tuple(1000 * (sequence_id + 1) + i for i in range(prompt))
    return scheduler.add(
        SequenceRequest(
            sequence_id,
            prompt,
            max_tokens,
            Sampling(),
            priority=priority,
            arrived_s=arrived_s,
            tenant=tenant,
            prompt_logprobs=prompt_logprobs,
            adapter_id=adapter_id,
            media=media,
        )
    )


def parts(plan: StepPlan) -> list[tuple[int, int, int]]:
    """Return (sequence id, start, number of tokens) of each part."""
    return [(part.sequence.sequence_id, part.start, part.num_tokens) for part in plan.parts]


def running(scheduler: StepScheduler) -> list[int]:
    return [sequence.sequence_id for sequence in scheduler.running]


def step(scheduler: StepScheduler, memory: BlockMemory | None = None, token_id: int = 0) -> StepPlan:
    """Execute one step; every sequence that completes gets `token_id`."""
    plan = scheduler.plan()
    assert plan.parts, "there is work, and nothing is planned"
    if memory is not None:
        memory.carry_out(plan)
    finish(scheduler, plan, token_id)
    return plan


def finish(scheduler: StepScheduler, plan: StepPlan, token_id: int = 0) -> None:
    """Record that a plan was executed; every sequence that completes gets `token_id`."""
    scheduler.advance(plan)
    for part in plan.parts:
        if part.completes:
            part.sequence.token_ids.append(token_id)
            if part.sequence.num_generated_tokens >= part.sequence.request.max_tokens:
                scheduler.remove(part.sequence)
    scheduler.check_integrity()


def run_out(scheduler: StepScheduler) -> None:
    while scheduler.running or scheduler.stats(0).waiting:
        step(scheduler)
