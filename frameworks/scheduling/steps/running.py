"""The running sequences of a model and the blocks that they hold. Pure."""

from frameworks.scheduling.steps.blocks import BlockPool, Chain, Copy, PrefixMatch
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from frameworks.scheduling.steps.tenant_queues import WaitingQueue


class RunningSequences:
    """The sequences that hold blocks, the oldest first, and the copies of blocks that the next step has to make.

    `preemptions`: sequences that returned their blocks before their end. `prompt_tokens`: of all sequences that began,
    of which `prefix_hit_tokens` were cached.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.sequences: list[Sequence] = []
        self.preemptions = 0
        self.prompt_tokens = 0
        self.prefix_hit_tokens = 0
        self.copies: list[Copy] = []
        """Those to make before the next step, in this order."""

    def match(self, sequence: Sequence) -> PrefixMatch:
        """Find the longest prefix of a sequence that is cached for its tenant and adapter.

        Tokens that have to be scored are computed again: the cache holds no logits.
        """
        found = self.pool.match(sequence.content_ids, sequence.chain.scope)
        if sequence.request.is_aligned:
            # Its attention is wanted of all tokens after the source.
            return PrefixMatch(found.blocks[: sequence.num_shared_tokens // self.pool.block_tokens], is_pending=False)
        if sequence.num_scored < sequence.num_to_score:
            return PrefixMatch(found.blocks[: sequence.num_scored // self.pool.block_tokens], is_pending=False)
        return found

    def reserve(self, sequence: Sequence, cached: list[int]) -> bool:
        """Allocate blocks for all of the sequence's tokens, if a free one is left for each running sequence.

        Return False, and change nothing, if there are too few. `cached`: the blocks of its prefix; they are removed
        from the list if they had to be evicted.
        """
        needed = self.num_needed(sequence)
        if (
            self.sequences
            and needed + sum([each.width for each in self.sequences]) * self.pool.num_spare > self.pool.num_free
        ):
            return False
        blocks = self.pool.allocate(needed, keep=cached)
        if blocks is None and not self.sequences:
            # There are enough blocks if the cached prefix itself is evicted.
            cached.clear()
            blocks = self.pool.allocate(needed)
        if blocks is None:
            return False
        sequence.blocks = blocks
        return True

    def start(self, plan: StepPlan, sequence: Sequence, cached: list[int]) -> None:
        """Add a sequence whose blocks are reserved; `cached` are copied into the first of them."""
        self.copies += [Copy(*pair) for pair in zip(cached, sequence.blocks, strict=False)]
        sequence.num_computed_tokens = len(cached) * self.pool.block_tokens
        self.cache_full_blocks(sequence)
        self.pool.mark_pending(sequence.chain, sequence.content_ids)
        if not sequence.has_begun:
            sequence.has_begun = True
            num_cached = min(sequence.num_computed_tokens, sequence.request.num_prompt_tokens)
            plan.begun.append((sequence.sequence_id, num_cached))
            self.prompt_tokens += sequence.request.num_prompt_tokens
            self.prefix_hit_tokens += num_cached
        self.sequences.append(sequence)
        self.sequences.sort()

    def extend(self, sequence: Sequence) -> bool:
        """Allocate the block for the sequence's next token if it needs one. Return False if there is none."""
        pool = self.pool
        if sequence.width > 1:
            missing = sequence.num_columns(sequence.num_computed_tokens + 1, pool.block_tokens) - len(sequence.blocks)
            if missing <= 0:
                return True
        elif sequence.num_computed_tokens + pool.state_tokens < len(sequence.blocks) * pool.block_tokens:
            return True
        taken = pool.allocate(sequence.width)
        if taken is None:
            return False
        sequence.blocks += taken
        return True

    def extend_by(self, sequence: Sequence, count: int) -> int:
        """Allocate blocks for up to `count` proposed tokens after the next one, while a free block is left for each
        running sequence. Return the number of tokens that have a slot.
        """
        pool = self.pool
        while True:
            slots = len(sequence.blocks) * pool.block_tokens - pool.state_tokens - sequence.num_computed_tokens - 1
            taken = None
            if slots < count and pool.num_free > len(self.sequences):
                taken = pool.allocate(1)
            if taken is None:
                return min(slots, count)
            sequence.blocks += taken

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence and release its blocks."""
        self.sequences.remove(sequence)
        self.pool.unmark_pending(sequence.chain)
        self.copies += self.pool.release(sequence.blocks)
        sequence.blocks, sequence.chain, sequence.num_computed_tokens = [], Chain(sequence.chain.scope), 0
        sequence.cache = None
        if sequence.width > 1:
            # Its beams are searched again.
            del sequence.token_ids[len(sequence.request.prompt_ids) :]

    def preempt(self, sequence: Sequence, waiting: WaitingQueue) -> None:
        """Release a sequence's blocks before its end; it waits again."""
        self.preemptions += 1
        self.remove(sequence)
        waiting.add(sequence)

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Make the blocks matchable that the sequence has filled."""
        computed = sequence.num_computed_tokens
        if sequence.width > 1:
            computed = min(computed, sequence.num_shared_tokens)
        self.pool.cache_full_blocks(sequence.chain, sequence.content_ids, computed, sequence.blocks)

    def num_needed(self, sequence: Sequence) -> int:
        """Return the number of blocks that its state and all of its tokens take."""
        return sequence.num_columns(len(sequence.token_ids) + self.pool.state_tokens, self.pool.block_tokens)

    def take_copies(self) -> list[Copy]:
        """Return the copies to make before the next step; each is returned once."""
        copies, self.copies = self.copies, []
        return copies

    def clear_cache(self) -> None:
        """Drop all cached content and the copies that are due."""
        self.copies.clear()
        self.pool.clear_cache()

    def check_integrity(self) -> None:
        """Raise AssertionError where blocks are lost or held twice."""
        self.pool.check_integrity([block for sequence in self.sequences for block in sequence.blocks])
