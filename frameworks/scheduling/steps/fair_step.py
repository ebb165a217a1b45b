"""Divide one step among the tenants of a model. Pure.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) over the cost of the computed tokens, as Sheng et al.,
"Fairness in Serving Large Language Models", OSDI 2024, count them: a prompt token costs less than a decode.
"""

import heapq
from collections import deque
from collections.abc import Collection, Iterable

from frameworks.core.fairness import TenantShare
from frameworks.scheduling.steps.running import RunningSequences
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan
from frameworks.scheduling.steps.tenant_queues import TenantQueue

# A tenant without blocks preempts sequences of tenants that hold this many times as many blocks by weight.
_PREEMPTS_FROM = 2


class _StepTenant:
    """One tenant in a step. `time`: its virtual time after the parts that it has. `next`: its running sequences that
    have no part yet: decodes first, then prompts, each the oldest first.
    """

    __slots__ = ("deferred", "held_blocks", "is_prefilling", "next", "num_parts", "queue", "time")

    def __init__(self, queue: TenantQueue) -> None:
        self.queue = queue
        self.time = queue.share.time
        self.next: deque[Sequence] = deque()
        self.is_prefilling = False
        self.held_blocks = 0
        self.num_parts = 0
        self.deferred: list[Sequence] = []

    @property
    def held_by_weight(self) -> float:
        return self.held_blocks / self.queue.weight

    def __lt__(self, other: "_StepTenant") -> bool:
        # At equal times, a tenant without running sequences is first: it has just arrived.
        return (self.time, self.held_blocks) < (other.time, other.held_blocks)


class FairStep:
    """Choose the parts of one step.

    The tenant with the least virtual time is served first: its next decode, a part of its next prompt, or its next
    waiting sequence. Running sequences that do not fit are paused and keep their blocks. Tenants use the tokens that
    others leave. If no block is free, the tenant with most blocks by weight is preempted.
    """

    def __init__(
        self,
        plan: StepPlan,
        running: RunningSequences,
        queues: list[TenantQueue],
        max_sequences: int,
        budget: int,
        prompt_token_cost: float,
    ) -> None:
        """`budget`: prompt tokens of the step. `prompt_token_cost`: cost of a prompt token; that of a decode is 1."""
        self._plan = plan
        self._running = running
        self._max_sequences = max_sequences
        self._budget = budget
        self._prompt_token_cost = prompt_token_cost
        self._tenants = {queue.share.tenant.name: _StepTenant(queue) for queue in queues}
        self._planned: set[int] = set()
        prompts: list[Sequence] = []
        for sequence in running.sequences:
            tenant = self._tenant_of(sequence)
            tenant.held_blocks += len(sequence.blocks)
            if sequence.num_uncomputed_tokens == 1:
                tenant.next.append(sequence)
            elif sequence.num_uncomputed_tokens:
                tenant.is_prefilling = True
                prompts.append(sequence)
        for sequence in prompts:
            self._tenant_of(sequence).next.append(sequence)

    def schedule(self, held: Collection[str] = ()) -> list[TenantShare]:
        """Add parts to the plan until it is full or no tenant has further work, and the cost of each tenant.

        `held`: names of tenants that are left out, unless nothing else can be computed. Return the shares of the other
        tenants that have further work.
        """
        others = [tenant for name, tenant in self._tenants.items() if name not in held]
        self._serve_all(others)
        if not self._plan.parts:
            # The paused sequences of held tenants may have the blocks that the others need.
            self._serve_all(tenant for name, tenant in self._tenants.items() if name in held)
        for tenant in self._tenants.values():
            for sequence in tenant.deferred:
                tenant.queue.waiting.add(sequence)
        return [tenant.queue.share for tenant in others if tenant.num_parts < tenant.queue.share.queued]

    def _serve_all(self, tenants: Iterable[_StepTenant]) -> None:
        tenants = list(tenants)
        heapq.heapify(tenants)
        while tenants and len(self._plan.parts) < self._max_sequences:
            tenant = tenants[0]
            cost = self._serve(tenant)
            if cost is None:
                heapq.heappop(tenants)
                continue
            share = tenant.queue.share
            self._plan.costs[share] = self._plan.costs.get(share, 0.0) + cost
            tenant.time += cost / tenant.queue.weight
            tenant.num_parts += 1
            # Preempted blocks change the order of equal times only.
            heapq.heapreplace(tenants, tenant)

    def _serve(self, tenant: _StepTenant) -> float | None:
        """Plan the tenant's next part and return its cost; None if it has no further one in this step."""
        while tenant.next:
            sequence = tenant.next.popleft()
            if not sequence.blocks:
                continue  # it was preempted in this step
            if sequence.num_uncomputed_tokens > 1:
                if self._budget > 0 and self._plan.accepts(sequence):
                    return self._plan_prompt(sequence)
            elif self._has_block_for_next(tenant, sequence):
                self._plan.parts.append(StepPart(sequence, sequence.num_computed_tokens, 1))
                self._planned.add(sequence.sequence_id)
                return 1.0
        return self._start_next(tenant)

    def _start_next(self, tenant: _StepTenant) -> float | None:
        """Start the tenant's next waiting sequence, unless it can share a block that the tenant is computing."""
        while self._budget > 0 and len(tenant.deferred) < self._max_sequences:
            sequence = tenant.queue.waiting.take()
            if sequence is None:
                return None
            if sequence.is_unread:
                tenant.deferred.append(sequence)
                continue
            cached = self._running.match(sequence)
            is_pending = cached.is_pending and tenant.is_prefilling
            if is_pending or not self._plan.accepts(sequence, len(cached.blocks) * self._running.pool.block_tokens):
                tenant.deferred.append(sequence)
                continue
            if not self._may_start(tenant, sequence) or not self._reserve(tenant, sequence, cached.blocks):
                tenant.deferred.append(sequence)
                return None
            return self._start(tenant, sequence, cached.blocks)
        return None

    def _start(self, tenant: _StepTenant, sequence: Sequence, cached: list[int]) -> float:
        if tenant.queue.blocked is sequence:
            tenant.queue.blocked = None
        self._running.start(self._plan, sequence, cached)
        tenant.held_blocks += len(sequence.blocks)
        tenant.is_prefilling = True
        return self._plan_prompt(sequence)

    def _plan_prompt(self, sequence: Sequence) -> float:
        count = self._plan.add_part(sequence, self._budget)
        self._planned.add(sequence.sequence_id)
        self._budget -= count
        return count * self._prompt_token_cost

    def _may_start(self, tenant: _StepTenant, sequence: Sequence) -> bool:
        """Return whether no sequence of another tenant has to start first, because it has waited for blocks too long.

        A tenant that runs nothing may be ahead by as many tokens as all blocks hold.
        """
        if not self._running.sequences:
            return True
        queue, pool = tenant.queue, self._running.pool
        start = queue.start_by if queue.blocked is sequence else tenant.time
        if not tenant.held_blocks:
            start -= pool.num_blocks * pool.block_tokens / queue.weight
        return all(
            start <= other.queue.start_by
            for other in self._tenants.values()
            if other is not tenant and other.queue.blocked is not None
        )

    def _reserve(self, tenant: _StepTenant, sequence: Sequence, cached: list[int]) -> bool:
        """Allocate the sequence's blocks. `cached` may change."""
        if self._running.reserve(sequence, cached):
            return True
        victims = self._preempted_for(tenant, sequence)
        for victim in victims:
            victim.was_displaced = True
            self._preempt(victim)
        if victims:
            # Blocks move when they are released.
            cached[:] = self._running.match(sequence).blocks
            if self._running.reserve(sequence, cached):
                return True
        tenant.queue.block(sequence)
        return False

    def _preempted_for(self, tenant: _StepTenant, sequence: Sequence) -> list[Sequence]:
        """Return the sequences to preempt for the first one of a tenant without running ones; empty: it has to wait.

        Each sequence is preempted once at most, so that all of them progress.
        """
        if tenant.held_blocks:
            return []
        needed = self._running.num_needed(sequence)
        least = _PREEMPTS_FROM * needed / tenant.queue.weight
        candidates = [one for one in self._unplanned() if not one.was_displaced]
        pool = self._running.pool
        free, remaining = pool.num_free, len(self._running.sequences)
        victims: list[Sequence] = []
        held = {name: each.held_blocks for name, each in self._tenants.items()}
        while candidates and needed + remaining * pool.num_spare > free:
            victim = max(candidates, key=lambda one: (self._by_weight(one, held), one))
            if self._by_weight(victim, held) < least:
                return []
            candidates.remove(victim)
            victims.append(victim)
            held[victim.request.tenant.name] -= len(victim.blocks)
            free += len(victim.blocks)
            remaining -= 1
        return victims if needed + remaining * pool.num_spare <= free else []

    def _has_block_for_next(self, tenant: _StepTenant, sequence: Sequence) -> bool:
        """Allocate the block for the sequence's next token. Return False if the sequence itself was preempted."""
        before = len(sequence.blocks)
        while not self._running.extend(sequence):
            victim = max(self._unplanned(), key=lambda one: (self._tenant_of(one).held_by_weight, one))
            self._preempt(victim)
            if victim is sequence:
                return False
        tenant.held_blocks += len(sequence.blocks) - before
        return True

    def _preempt(self, sequence: Sequence) -> None:
        tenant = self._tenant_of(sequence)
        tenant.held_blocks -= len(sequence.blocks)
        self._running.preempt(sequence, tenant.queue.waiting)

    def _unplanned(self) -> list[Sequence]:
        """Return the running sequences that this step does not compute yet."""
        return [one for one in self._running.sequences if one.sequence_id not in self._planned]

    def _tenant_of(self, sequence: Sequence) -> _StepTenant:
        return self._tenants[sequence.request.tenant.name]

    @staticmethod
    def _by_weight(sequence: Sequence, held: dict[str, int]) -> float:
        return held[sequence.request.tenant.name] / sequence.request.tenant.weight
