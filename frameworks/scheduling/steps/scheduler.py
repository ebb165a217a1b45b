"""Decide the batch of the next step: sequences start as soon as there are blocks, and end as soon as they are done.

Pure: it touches no tensor and reads no clock. Continuous batching after Orca (Yu et al., OSDI 2022); prompts prefilled
in parts beside decoding sequences after Sarathi-Serve (Agrawal et al., OSDI 2024).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from frameworks.core.fairness import TenantShare
from frameworks.core.tenants import Tenant
from frameworks.generation.media import ImageGroup
from frameworks.generation.sequences import SequenceRequest, StepStats
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.fair_step import FairStep
from frameworks.scheduling.steps.running import RunningSequences
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan, always_ready
from frameworks.scheduling.steps.step_cost import MIN_PROMPT_TOKENS, StepCost
from frameworks.scheduling.steps.tenant_queues import TenantQueue, TenantQueues


class StepScheduler:
    """Used by one thread.

    Sequences wait in the order of their arrival; a level of priority counts as `ageing_s` seconds. The first one starts
    when there are blocks for its whole prompt. If no block is free for the next token of a running sequence, the
    youngest is preempted: it releases its blocks and is queued again, in its old order. FairStep divides a step among
    several tenants.
    """

    def __init__(
        self,
        pool: BlockPool,
        cost: StepCost,
        max_sequences: int,
        max_num_batched_tokens: int,
        ageing_s: float = 1.0,
        splits_prompts: bool = True,
        max_scored_tokens: int = MIN_PROMPT_TOKENS,
    ) -> None:
        """`max_sequences`: in one step. `max_num_batched_tokens`: computed in one step, over all sequences.
        `splits_prompts`: False: each prompt is computed at once, and may exceed that number. `max_scored_tokens`: in
        one step, of prompts whose log probabilities are requested.
        """
        self.pool = pool
        self.cost = cost
        self._max_sequences = max_sequences
        self._max_num_batched_tokens = max(max_num_batched_tokens, max_sequences)
        self._ageing_s = ageing_s
        self._splits_prompts = splits_prompts
        self._max_scored_tokens = max_scored_tokens
        self.max_whole_prompts = 1
        """Prompts that a step may compute in one part with what they read: images, or the source of an encoder."""
        self._has_paused = False
        self.is_ready: Callable[[Sequence, ImageGroup], bool] = always_ready
        """As StepPlan.is_ready."""
        self.wanted: tuple[Sequence, ImageGroup] | None = None
        """As StepPlan.wanted, of the last plan."""
        self._running = RunningSequences(pool)
        self.running = self._running.sequences
        """The sequences that hold blocks, the oldest first. A step may pause some of them."""
        self._queues = TenantQueues()

    def stats(self, block_bytes: int) -> StepStats:
        """Return the state after a step. `block_bytes`: of a block of the pool."""
        pool, totals = self.pool, self._running
        return StepStats(
            running=len(self.running),
            waiting=self._queues.num_sequences - len(self.running),
            kv_used_bytes=(pool.num_blocks - pool.num_free) * block_bytes,
            kv_cached_bytes=pool.num_cached * block_bytes,
            kv_total_bytes=pool.num_blocks * block_bytes,
            prefix_hit_tokens=totals.prefix_hit_tokens,
            prompt_tokens=totals.prompt_tokens,
            preemptions=totals.preemptions,
        )

    def add(self, request: SequenceRequest) -> Sequence:
        sequence = Sequence(request, request.arrived_s + request.priority * self._ageing_s)
        self._queues.add(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that is complete or cancelled."""
        waiting = self._queues.of(sequence).waiting
        if sequence in waiting:
            waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        self._queues.forget(sequence)

    def plan(self, held: Collection[str] = ()) -> StepPlan:
        """Plan the next step. The plan is empty only if there is no sequence, the host has to read tokens first, or all
        prompts need images that are not ready.

        `held`: names of tenants that are left out if others have work.
        """
        plan = StepPlan(
            splits_prompts=self._splits_prompts,
            scorable=self._max_scored_tokens,
            whole_prompts=self.max_whole_prompts,
            is_ready=self.is_ready,
        )
        queue = self._queues.only
        if queue is not None:
            self._plan_of_one_tenant(plan, queue)
            self._queues.clock.ran(plan.costs)
        else:
            limited = self._fair_step(plan).schedule(held)
            self._queues.clock.ran(plan.costs)
            self._queues.level(limited)
        if len(plan.parts) > 1:
            _sort(plan)
        if self._running.copies:
            plan.copies = self._running.take_copies()
        self.wanted = plan.wanted
        return plan

    def charge_image(self, sequence: Sequence, seconds: float) -> tuple[Tenant, float]:
        """Charge a tenant for the work on an image; return the cost, as StepPlan.costs have it."""
        share = self._queues.of(sequence).share
        cost = seconds / (self.cost.seconds_of(1) or seconds or 1.0)
        self._queues.clock.ran({share: cost})
        return share.tenant, cost

    def add_proposals(self, plan: StepPlan, proposals: Mapping[int, tuple[int, ...]]) -> None:
        """Add proposed tokens to decodes of a plan, as far as they fit, and charge their tenants.

        `proposals`: by sequence id. No sequence is preempted for them.
        """
        budget = self._max_num_batched_tokens - sum(part.num_tokens for part in plan.parts)
        each = self.cost.prompt_token_cost(sum(part.num_tokens == 1 for part in plan.parts))
        costs: dict[TenantShare, float] = {}
        for index, part in enumerate(plan.parts):
            sequence = part.sequence
            count = min(len(proposals.get(sequence.sequence_id, ())), budget)
            if count > 0:
                count = self._running.extend_by(sequence, count)
            if count > 0:
                budget -= count
                proposed = proposals[sequence.sequence_id][:count]
                plan.parts[index] = replace(part, num_tokens=1 + count, proposed=proposed)
                share = self._queues.of(sequence).share
                costs[share] = costs.get(share, 0.0) + count * each
        if costs:
            self._queues.clock.ran(costs)
            for share, cost in costs.items():
                plan.costs[share] = plan.costs.get(share, 0.0) + cost
            _sort(plan)

    def confirm(self, sequence: Sequence) -> None:
        """Record that the next token of a sequence was computed, in a part with proposed tokens."""
        sequence.num_computed_tokens += 1
        self._running.cache_full_blocks(sequence)

    def advance(self, plan: StepPlan) -> None:
        """Record that the plan was executed. Of parts with proposed tokens `confirm` records it, token by token."""
        for part in plan.parts:
            sequence = part.sequence
            if part.proposed or not sequence.blocks:  # without blocks it ended while the step ran
                continue
            sequence.num_computed_tokens += part.num_tokens
            if part.is_scored:
                # A preempted sequence computes some of its tokens again.
                scored = min(sequence.num_computed_tokens, sequence.num_to_score)
                sequence.num_scored = max(sequence.num_scored, scored)
            if sequence.num_computed_tokens - sequence.chain.tokens >= self.pool.block_tokens:
                self._running.cache_full_blocks(sequence)
            if not part.completes:
                self.pool.unmark_pending(sequence.chain)
                self.pool.mark_pending(sequence.chain, sequence.content_ids)

    def clear_cache(self) -> None:
        """Drop all cached content: after a failed step it is unknown what the blocks hold."""
        self._running.clear_cache()

    def check_integrity(self) -> None:
        """Raise AssertionError where blocks are lost or held twice."""
        self._running.check_integrity()
        self._queues.check_integrity()

    def _plan_of_one_tenant(self, plan: StepPlan, queue: TenantQueue) -> None:
        """Plan the decodes, and prompts beside them. A step of decodes alone estimates no costs."""
        queue.blocked = None
        decodes = [sequence for sequence in self.running if sequence.num_uncomputed_tokens == 1]
        if len(decodes) < queue.share.queued:
            budget = self._budget_in_pause(queue, len(decodes))
            if budget:
                self._plan_prompts(plan, queue, budget, len(decodes))
        # Without a block for the prompt nothing is planned, and the decodes continue.
        self._has_paused = bool(plan.parts)
        if self._has_paused:
            return
        for sequence in decodes:
            # A sequence without blocks was preempted for an earlier one.
            if sequence.blocks and (self._running.extend(sequence) or self._preempt_for(sequence, queue)):
                plan.parts.append(StepPart(sequence, sequence.num_computed_tokens, 1))
        num_decodes = len(plan.parts)
        plan.costs[queue.share] = num_decodes
        if num_decodes < queue.share.queued:
            budget = min(self._max_num_batched_tokens - num_decodes, self.cost.max_prompt_tokens(num_decodes))
            self._plan_prompts(plan, queue, budget, num_decodes)

    def _budget_in_pause(self, queue: TenantQueue, num_decodes: int) -> int:
        """Return the prompt tokens of a step in which the decodes pause; 0: they do not pause.

        They pause for a prompt that is complete after this step, but would need several steps beside them. So its first
        token is earlier, and the others wait no longer than beside a part of a long prompt. They never pause twice in
        a row.
        """
        if self._has_paused or not num_decodes:
            return 0
        most = min(self._max_num_batched_tokens, self.cost.max_tokens_in_pause(num_decodes))
        beside = self.cost.max_prompt_tokens(num_decodes)
        # The missing tokens take a search of the prefix cache.
        return most if beside < most and beside < self._num_missing_tokens(queue) <= most else 0

    def _num_missing_tokens(self, queue: TenantQueue) -> int:
        """Return how many tokens of the next prompt have to be computed; 0 if no prompt can be completed in a step."""
        prompts = (sequence for sequence in self.running if sequence.num_uncomputed_tokens > 1)
        sequence = next(prompts, None)
        cached_tokens = 0
        if sequence is None and len(self.running) < self._max_sequences:
            sequence = queue.waiting.first
            if sequence is not None and not sequence.is_unread:
                cached_tokens = len(self._running.match(sequence).blocks) * self.pool.block_tokens
        if sequence is None or sequence.is_unread or sequence.num_scored < sequence.num_to_score:
            return 0
        if sequence.request.media is not None:
            return 0  # its images take longer than their tokens
        return sequence.num_uncomputed_tokens - cached_tokens

    def _plan_prompts(self, plan: StepPlan, queue: TenantQueue, budget: int, num_decodes: int) -> None:
        """Plan parts of running prompts, and start waiting ones. `num_decodes`: in this step, or that pause for it."""
        most = budget
        num_parts = len(plan.parts)
        for sequence in self.running:
            if sequence.num_uncomputed_tokens > 1 and budget > 0 and plan.accepts(sequence):
                budget -= plan.add_part(sequence, budget)
        if budget > 0:
            budget = self._schedule_waiting(plan, queue, budget)
        prompt_tokens = most - budget
        each = self.cost.prompt_token_cost(num_decodes) if prompt_tokens else 0.0
        plan.costs[queue.share] = num_parts + prompt_tokens * each

    def _fair_step(self, plan: StepPlan) -> FairStep:
        num_decodes = sum(sequence.num_uncomputed_tokens == 1 for sequence in self.running)
        # At most this many decodes fit beside a prompt.
        num_decodes = min(num_decodes, self._max_sequences - 1)
        budget = min(self._max_num_batched_tokens - num_decodes, self.cost.max_prompt_tokens(num_decodes))
        each = self.cost.prompt_token_cost(num_decodes)
        return FairStep(plan, self._running, self._queues.all(), self._max_sequences, budget, each)

    def _preempt_for(self, sequence: Sequence, queue: TenantQueue) -> bool:
        """Preempt the youngest sequences until there is a block for the next token of this one. Return False if the
        sequence itself was preempted.
        """
        while True:
            youngest = max(self.running)
            self._running.preempt(youngest, queue.waiting)
            if youngest is sequence:
                return False
            if self._running.extend(sequence):
                return True

    def _schedule_waiting(self, plan: StepPlan, queue: TenantQueue, budget: int) -> int:
        """Start waiting sequences in order, up to the budget; return the rest of it. A sequence whose next
        block is pending waits for it; a step defers no more sequences than may run at once.
        """
        deferred: list[Sequence] = []
        while budget > 0 and len(self.running) < self._max_sequences and len(deferred) < self._max_sequences:
            sequence = queue.waiting.take()
            if sequence is None:
                break
            if sequence.is_unread:
                deferred.append(sequence)
                continue
            cached = self._running.match(sequence)
            if cached.is_pending or not plan.accepts(sequence, len(cached.blocks) * self.pool.block_tokens):
                deferred.append(sequence)
                continue
            if not self._running.reserve(sequence, cached.blocks):
                deferred.append(sequence)
                break
            self._running.start(plan, sequence, cached.blocks)
            budget -= plan.add_part(sequence, budget)
        for sequence in deferred:
            queue.waiting.add(sequence)
        return budget


def _sort(plan: StepPlan) -> None:
    plan.parts.sort(key=lambda part: (part.num_tokens > 1, part.sequence.request.adapter_id))
