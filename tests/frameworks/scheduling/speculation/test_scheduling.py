"""Proposed tokens are charged to their tenants, and take only room that no other text needs."""

from frameworks.core.tenants import Tenant
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from frameworks.scheduling.steps.step_cost import StepCost


def scheduler_of(blocks: int, most: int = 64) -> StepScheduler:
    cost = StepCost(most)
    cost.learn(2, 0, 1.0)
    cost.learn(2, 20, 2.0)  # a token of a prompt costs 0.1 decodes
    return StepScheduler(BlockPool(blocks, 4), cost, 4, most)


def decoding(scheduler: StepScheduler, *tenants: str) -> tuple[list[Sequence], StepPlan]:
    """Return one sequence of three tokens for each tenant, and the plan of their first decodes."""
    made = [
        scheduler.add(
            SequenceRequest(i, (10 * i, 1, 2), 30, Sampling(), priority=5, arrived_s=float(i), tenant=Tenant(name))
        )
        for i, name in enumerate(tenants)
    ]
    scheduler.advance(scheduler.plan())
    for sequence in made:
        sequence.token_ids.append(3)
    return made, scheduler.plan()


def test_tenant_is_charged_for_its_proposals() -> None:
    scheduler = scheduler_of(20)
    _, plan = decoding(scheduler, "a", "b")
    before = {share.tenant.name: (cost, share.time) for share, cost in plan.costs.items()}
    scheduler.add_proposals(plan, {0: (4, 5, 6, 7)})
    costs = {share.tenant.name: cost - before[share.tenant.name][0] for share, cost in plan.costs.items()}
    times = {share.tenant.name: share.time - before[share.tenant.name][1] for share in plan.costs}
    assert costs["b"] == times["b"] == 0
    assert abs(costs["a"] - 0.4) < 1e-9
    assert abs(times["a"] - 0.4) < 1e-9
    assert [(part.sequence.sequence_id, part.num_tokens) for part in plan.parts] == [(1, 1), (0, 5)]


def test_proposals_end_where_blocks_are_in_reserve() -> None:
    scheduler = scheduler_of(5)
    [first, second], plan = decoding(scheduler, "a", "a")
    held = len(first.blocks) + len(second.blocks)
    scheduler.add_proposals(plan, {0: (4,) * 20, 1: (4,) * 20})
    assert scheduler.pool.num_used - held <= 1
    assert scheduler.pool.num_free >= 2, "a block for each running sequence"
    assert {len(part.proposed) for part in plan.parts} <= set(range(8))
    scheduler.check_integrity()


def test_proposals_end_at_tokens_of_step() -> None:
    scheduler = scheduler_of(40, most=8)
    _, plan = decoding(scheduler, "a", "a")
    scheduler.add_proposals(plan, {0: (4,) * 5, 1: (4,) * 5})
    assert [len(part.proposed) for part in plan.parts] == [5, 1]


def test_confirmed_tokens_become_prefix_of_others() -> None:
    scheduler = scheduler_of(20)
    [sequence], plan = decoding(scheduler, "a")
    scheduler.add_proposals(plan, {0: (4, 5, 6, 7, 8, 9)})
    scheduler.advance(plan)
    for token_id in (4, 5, 60):  # the third one was proposed wrongly
        scheduler.confirm(sequence)
        sequence.token_ids.append(token_id)
    assert (sequence.num_computed_tokens, sequence.num_uncomputed_tokens) == (6, 1)
    matched = [
        len(scheduler.pool.match([0, 1, 2, 3, 4, 5, end, 7, 8, 9], sequence.chain.scope).blocks) for end in (6, 60)
    ]
    assert matched == [1, 1], "only whole blocks of accepted tokens"
