"""The scheduler for one tenant alone, as it was before tenants shared steps: the reference for its decisions."""

from collections.abc import Collection

from frameworks.generation.sequences import SequenceRequest, StepStats
from frameworks.scheduling.steps.blocks import BlockPool, Chain, Copy
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan
from frameworks.scheduling.steps.step_cost import MIN_PROMPT_TOKENS, StepCost
from frameworks.scheduling.steps.tenant_queues import WaitingQueue

_MAX_ATTENTION_PAIRS = 1 << 22


class OneTenantScheduler:
    """Used by one thread.

    Sequences wait in the order of their arrival; a level of priority counts as `ageing_s` seconds. The first one starts
    when there are blocks for its whole prompt. If a running sequence finds no block for its next token, the youngest is
    preempted: it releases its blocks and waits again, in its old place.
    """

    def __init__(
        self, pool: BlockPool, cost: StepCost, max_sequences: int, max_num_batched_tokens: int, ageing_s: float = 1.0
    ) -> None:
        """`max_sequences`: running at once. `max_num_batched_tokens`: computed in one step, over all sequences."""
        self.pool = pool
        self.cost = cost
        self._max_sequences = max_sequences
        self._max_num_batched_tokens = max(max_num_batched_tokens, max_sequences)
        self._ageing_s = ageing_s
        self.running: list[Sequence] = []
        """The oldest first."""
        self._waiting = WaitingQueue()
        self._copies: list[Copy] = []
        self.preemptions = 0
        self.prompt_tokens = 0
        self.prefix_hit_tokens = 0

    def stats(self, _block_bytes: int) -> StepStats:
        """Return the counts that both schedulers have."""
        return StepStats(
            waiting=len(self._waiting),
            prefix_hit_tokens=self.prefix_hit_tokens,
            prompt_tokens=self.prompt_tokens,
            preemptions=self.preemptions,
        )

    def add(self, request: SequenceRequest) -> Sequence:
        sequence = Sequence(request, request.arrived_s + request.priority * self._ageing_s)
        self._waiting.add(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that is complete or cancelled."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release_blocks(sequence)

    def plan(self, _: Collection[str] = ()) -> StepPlan:
        """Plan the next step. The plan is empty only if there is no sequence."""
        plan = StepPlan()
        for sequence in list(self.running):
            if sequence.num_uncomputed_tokens == 1 and sequence.blocks and self._has_block_for_next(sequence):
                plan.parts.append(StepPart(sequence, sequence.num_computed_tokens, 1))
        num_decodes = len(plan.parts)
        budget = min(self._max_num_batched_tokens - num_decodes, self.cost.max_prompt_tokens(num_decodes))
        for sequence in self.running:
            if sequence.num_uncomputed_tokens > 1 and budget > 0:
                budget -= self._schedule_part(plan, sequence, budget)
        if budget > 0:
            self._schedule_waiting(plan, budget)
        plan.parts.sort(key=lambda part: part.num_tokens > 1)
        plan.copies, self._copies = self._copies, []
        return plan

    def advance(self, plan: StepPlan) -> None:
        """Record that the plan was executed."""
        for part in plan.parts:
            sequence = part.sequence
            sequence.num_computed_tokens += part.num_tokens
            self.pool.cache_full_blocks(
                sequence.chain, sequence.token_ids, sequence.num_computed_tokens, sequence.blocks
            )
            if not part.completes:
                self.pool.unmark_pending(sequence.chain)
                self.pool.mark_pending(sequence.chain, sequence.token_ids)

    def clear_cache(self) -> None:
        """Drop all cached content: after a failed step it is unknown what the blocks hold."""
        self._copies.clear()
        self.pool.clear_cache()

    def check_integrity(self) -> None:
        """Raise AssertionError where blocks are lost or held twice."""
        self.pool.check_integrity([block for sequence in self.running for block in sequence.blocks])
        assert all(not sequence.blocks for sequence in self._waiting.sequences()), "a waiting sequence holds blocks"

    def _has_block_for_next(self, sequence: Sequence) -> bool:
        """Allocate the block for the sequence's next token. Return False if the sequence itself was preempted."""
        while sequence.num_computed_tokens == len(sequence.blocks) * self.pool.block_tokens:
            taken = self.pool.allocate(1)
            if taken is not None:
                sequence.blocks += taken
                break
            youngest = max(self.running)
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return bool(sequence.blocks)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        self._release_blocks(sequence)
        self._waiting.add(sequence)

    def _release_blocks(self, sequence: Sequence) -> None:
        self.pool.unmark_pending(sequence.chain)
        self._copies += self.pool.release(sequence.blocks)
        sequence.blocks, sequence.chain, sequence.num_computed_tokens = [], Chain(sequence.chain.scope), 0

    def _schedule_part(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        most = max(MIN_PROMPT_TOKENS, _MAX_ATTENTION_PAIRS // len(sequence.token_ids))
        count = min(sequence.num_uncomputed_tokens, budget, most)
        plan.parts.append(StepPart(sequence, sequence.num_computed_tokens, count))
        return count

    def _schedule_waiting(self, plan: StepPlan, budget: int) -> None:
        """Start waiting sequences in order, as far as the budget goes. A sequence whose next block is pending waits for
        it; a step defers no more sequences than may run at once.
        """
        deferred: list[Sequence] = []
        while budget > 0 and len(self.running) < self._max_sequences and len(deferred) < self._max_sequences:
            sequence = self._waiting.take()
            if sequence is None:
                break
            cached = self.pool.match(sequence.token_ids, sequence.chain.scope)
            if cached.is_pending:
                deferred.append(sequence)
                continue
            if not self._has_blocks(sequence, cached.blocks):
                deferred.append(sequence)
                break
            self._start(plan, sequence, cached.blocks)
            budget -= self._schedule_part(plan, sequence, budget)
        for sequence in deferred:
            self._waiting.add(sequence)

    def _has_blocks(self, sequence: Sequence, cached: list[int]) -> bool:
        """Allocate blocks for all of the sequence's tokens, with one in reserve for each running sequence."""
        needed = -(-len(sequence.token_ids) // self.pool.block_tokens)
        if self.running and needed + len(self.running) > self.pool.num_free:
            return False
        blocks = self.pool.allocate(needed, keep=cached)
        if blocks is None and not self.running:
            # There is room if the cached prefix itself is evicted.
            cached.clear()
            blocks = self.pool.allocate(needed)
        if blocks is None:
            return False
        sequence.blocks = blocks
        return True

    def _cache_full_blocks(self, sequence: Sequence) -> None:
        computed = sequence.num_computed_tokens
        self.pool.cache_full_blocks(sequence.chain, sequence.token_ids, computed, sequence.blocks)

    def _start(self, plan: StepPlan, sequence: Sequence, cached: list[int]) -> None:
        self._copies += [Copy(*pair) for pair in zip(cached, sequence.blocks, strict=False)]
        sequence.num_computed_tokens = len(cached) * self.pool.block_tokens
        self._cache_full_blocks(sequence)
        self.pool.mark_pending(sequence.chain, sequence.token_ids)
        if not sequence.has_begun:
            sequence.has_begun = True
            plan.begun.append((sequence.sequence_id, sequence.num_computed_tokens))
            self.prompt_tokens += len(sequence.request.prompt_ids)
            self.prefix_hit_tokens += sequence.num_computed_tokens
        self.running.append(sequence)
        self.running.sort()
