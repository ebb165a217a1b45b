"""The sequences of a model in its draft model: the same tokens, with a KV cache of its own. Pure."""

from collections.abc import Collection
from dataclasses import replace
from itertools import takewhile

from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.running import RunningSequences
from frameworks.scheduling.steps.sequence import Sequence, StepPlan


class DraftSequence:
    """One sequence of the draft model. Its first `num_known` tokens are those of the model's; proposed ones follow."""

    __slots__ = ("num_known", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.num_known = len(sequence.token_ids)

    def follow(self, token_ids: list[int]) -> None:
        """Continue with the tokens of the model's sequence. Of the proposed ones, only accepted ones stay computed."""
        ours = self.sequence
        pairs = zip(ours.token_ids[self.num_known :], token_ids[self.num_known :], strict=False)
        num_accepted = self.num_known + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # The logits after the last token are needed, also where it was computed as a proposed one that did not fit.
        ours.num_computed_tokens = min(ours.num_computed_tokens, num_accepted, len(token_ids) - 1)
        ours.token_ids[self.num_known :] = token_ids[self.num_known :]
        self.num_known = len(token_ids)


class DraftSequences:
    """The sequences that a draft model has computed, over a pool of blocks. Used by one thread.

    A sequence that is preempted in the model keeps its blocks here. Where blocks are missing, sequences outside the
    step release theirs.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._running = RunningSequences(pool)
        self._drafts: dict[int, DraftSequence] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    def of(self, sequence: Sequence, plan: StepPlan, wished: Collection[int]) -> Sequence | None:
        """Return the draft's sequence, with all tokens and blocks for them. A new one begins with the cached blocks of
        its prefix, which `plan` copies.

        None where blocks are missing, or another sequence is computing its next one. `wished`: ids of the sequences
        of the step, which keep their blocks.
        """
        known = self._drafts.get(sequence.sequence_id)
        if known is None:
            return self._begin(sequence, plan, wished)
        known.follow(sequence.token_ids)
        return known.sequence if self.extend(known.sequence, wished) else None

    def extend(self, sequence: Sequence, wished: Collection[int]) -> bool:
        """Allocate the blocks that the tokens of a draft's sequence need. Return False if there are too few."""
        missing = self._running.num_needed(sequence) - len(sequence.blocks)
        if missing > 0:
            taken = self.pool.allocate(missing)
            while taken is None and self._drop_other(wished):
                taken = self.pool.allocate(missing)
            if taken is None:
                return False
            sequence.blocks += taken
        return True

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Record that further tokens of a draft's sequence were computed. Blocks of accepted ones may be shared."""
        sequence.num_computed_tokens += num_tokens
        if sequence.num_computed_tokens <= self._drafts[sequence.sequence_id].num_known:
            self._running.cache_full_blocks(sequence)

    def take_copies(self, plan: StepPlan) -> None:
        """Add the copies that are due to the plan."""
        plan.copies += self._running.take_copies()

    def forget(self, sequence_id: int) -> None:
        """Drop a sequence. Does nothing for an unknown one."""
        draft = self._drafts.pop(sequence_id, None)
        if draft is not None:
            self._running.remove(draft.sequence)

    def clear(self) -> None:
        """Drop all sequences, and all cached content: it is unknown what the blocks hold."""
        for sequence_id in list(self._drafts):
            self.forget(sequence_id)
        self._running.clear_cache()

    def check_integrity(self) -> None:
        """Raise AssertionError where blocks are lost or held twice."""
        self._running.check_integrity()
        assert {each.sequence_id for each in self._running.sequences} == set(self._drafts), "a sequence was lost"

    def _begin(self, sequence: Sequence, plan: StepPlan, wished: Collection[int]) -> Sequence | None:
        # The draft model has no adapters, and scores no prompts.
        request = replace(sequence.request, adapter_id=0, prompt_logprobs=None, matcher=None)
        ours = Sequence(request, sequence.order)
        ours.token_ids = list(sequence.token_ids)
        needed = self._running.num_needed(ours)
        while True:
            cached = self._running.match(ours)
            if cached.is_pending:
                return None
            blocks = self.pool.allocate(needed, cached.blocks)
            if blocks is not None:
                break
            # A dropped sequence may have held the blocks that match.
            if not self._drop_other(wished):
                return None
        ours.blocks = blocks
        self._running.start(plan, ours, cached.blocks)
        self._drafts[ours.sequence_id] = DraftSequence(ours)
        return ours

    def _drop_other(self, wished: Collection[int]) -> bool:
        """Drop the oldest sequence that is not wished. Return False if there is none."""
        other = next((sequence_id for sequence_id in self._drafts if sequence_id not in wished), None)
        if other is not None:
            self.forget(other)
        return other is not None
