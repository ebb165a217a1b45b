"""Who computes what in the next step: sequences join as soon as there is room and leave as soon as they are done.

Pure: it touches no tensor, and knows the time only from what it is told. Continuous batching after Orca (Yu et al.,
OSDI 2022); prompts computed in parts beside running texts after Sarathi-Serve (Agrawal et al., OSDI 2024).
"""

import heapq
from dataclasses import dataclass, field

from frameworks.generation.blocks import BlockPool, Chain, Copy
from frameworks.generation.step_cost import FEWEST_PROMPT_TOKENS, StepCost
from frameworks.generation.types import SequenceRequest

# Tokens of a part times those that it sees: of so many products the masks and the sums are in memory at once.
_MOST_PAIRS = 1 << 22


class Sequence:
    """One text on its way. `token_ids`: the prompt and what has been generated; of `computed` of them the keys and
    values lie in `blocks`.
    """

    __slots__ = ("blocks", "chain", "computed", "has_begun", "order", "request", "token_ids")

    def __init__(self, request: SequenceRequest, order: float) -> None:
        self.request = request
        self.order = order
        self.token_ids = list(request.prompt_ids)
        self.computed = 0
        self.blocks: list[int] = []
        self.chain = Chain()
        self.has_begun = False

    @property
    def sequence_id(self) -> int:
        return self.request.sequence_id

    @property
    def missing(self) -> int:
        """Tokens that have to be computed before the next one can be chosen; never 0."""
        return len(self.token_ids) - self.computed

    @property
    def generated(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    def __lt__(self, other: "Sequence") -> bool:
        return (self.order, self.sequence_id) < (other.order, other.sequence_id)


@dataclass(frozen=True, slots=True)
class StepPart:
    """What a step computes of one sequence: `count` tokens from `start` on."""

    sequence: Sequence
    start: int
    count: int

    @property
    def completes(self) -> bool:
        """Whether the next token can be chosen then."""
        return self.start + self.count == len(self.sequence.token_ids)


@dataclass(slots=True)
class StepPlan:
    """`copies` are made, in this order, before anything is computed. `parts`: those of one token first.

    `begun`: the sequences that join for the first time, with the number of their prompt's tokens that were known.
    """

    copies: list[Copy] = field(default_factory=list)
    parts: list[StepPart] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)


class StepScheduler:
    """Used by one thread.

    Sequences wait in the order of their arrival, a level of priority counting as `ageing_s` seconds. The first in the
    line joins when there are blocks for all of its prompt. When a text that runs finds no block for its next token,
    the youngest gives up its own and goes back into the line, where it keeps its place.
    """

    def __init__(
        self, pool: BlockPool, cost: StepCost, max_sequences: int, max_step_tokens: int, ageing_s: float = 1.0
    ) -> None:
        """`max_sequences`: that run at once. `max_step_tokens`: computed in one step, of all of them."""
        self.pool = pool
        self.cost = cost
        self._max_sequences = max_sequences
        self._max_step_tokens = max(max_step_tokens, max_sequences)
        self._ageing_s = ageing_s
        self.running: list[Sequence] = []
        """The oldest first."""
        self._waiting: list[Sequence] = []  # a heap
        self._copies: list[Copy] = []
        self.preemptions = 0
        self.prompt_tokens = 0
        self.prefix_hit_tokens = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: SequenceRequest) -> Sequence:
        sequence = Sequence(request, request.arrived_s + request.priority * self._ageing_s)
        heapq.heappush(self._waiting, sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """It is done, or nobody wants it any more."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._leave_blocks(sequence)
        else:
            self._waiting.remove(sequence)
            heapq.heapify(self._waiting)

    def plan(self) -> StepPlan:
        """The next step. Empty only if there is nothing to do."""
        plan = StepPlan()
        for sequence in list(self.running):
            if sequence.missing == 1 and sequence.blocks and self._has_block_for_next(sequence):
                plan.parts.append(StepPart(sequence, sequence.computed, 1))
        texts = len(plan.parts)
        room = min(self._max_step_tokens - texts, self.cost.most_prompt_tokens(texts))
        for sequence in self.running:
            if sequence.missing > 1 and room > 0:
                room -= self._take_part(plan, sequence, room)
        if room > 0:
            self._admit(plan, room)
        plan.parts.sort(key=lambda part: part.count > 1)
        plan.copies, self._copies = self._copies, []
        return plan

    def advance(self, plan: StepPlan) -> None:
        """The plan has been carried out."""
        for part in plan.parts:
            sequence = part.sequence
            sequence.computed += part.count
            self.pool.fill(sequence.chain, sequence.token_ids, sequence.computed, sequence.blocks)
            if not part.completes:
                self.pool.forget_expected(sequence.chain)
                self.pool.expect(sequence.chain, sequence.token_ids)

    def forget(self) -> None:
        """Nothing of what is in the blocks is to be taken for known any more: a step failed in the middle."""
        self._copies.clear()
        self.pool.forget()

    def check_integrity(self) -> None:
        """Raises AssertionError where blocks are lost, or held by nobody."""
        self.pool.check_integrity([block for sequence in self.running for block in sequence.blocks])
        assert all(not sequence.blocks for sequence in self._waiting), "a sequence that waits holds blocks"

    def _has_block_for_next(self, sequence: Sequence) -> bool:
        """Finds the block for the sequence's next token; False where it had to leave the batch itself."""
        while sequence.computed == len(sequence.blocks) * self.pool.block_tokens:
            taken = self.pool.take(1)
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
        self._leave_blocks(sequence)
        heapq.heappush(self._waiting, sequence)

    def _leave_blocks(self, sequence: Sequence) -> None:
        self.pool.forget_expected(sequence.chain)
        self._copies += self.pool.release(sequence.blocks)
        sequence.blocks, sequence.chain, sequence.computed = [], Chain(), 0

    def _take_part(self, plan: StepPlan, sequence: Sequence, room: int) -> int:
        most = max(FEWEST_PROMPT_TOKENS, _MOST_PAIRS // len(sequence.token_ids))
        count = min(sequence.missing, room, most)
        plan.parts.append(StepPart(sequence, sequence.computed, count))
        return count

    def _admit(self, plan: StepPlan, room: int) -> None:
        """Lets those in who are next, as far as there is room. Who begins with what is being computed for somebody
        else waits for that.
        """
        passed: list[Sequence] = []
        while self._waiting and room > 0 and len(self.running) < self._max_sequences:
            sequence = heapq.heappop(self._waiting)
            known = self.pool.match(sequence.token_ids)
            if known.is_coming:
                passed.append(sequence)
                continue
            if not self._has_blocks(sequence, known.blocks):
                passed.append(sequence)
                break
            self._join(plan, sequence, known.blocks)
            room -= self._take_part(plan, sequence, room)
        for sequence in passed:
            heapq.heappush(self._waiting, sequence)

    def _has_blocks(self, sequence: Sequence, known: list[int]) -> bool:
        """Finds blocks for all that is known of the sequence. Those that run may each need one more soon."""
        needed = -(-len(sequence.token_ids) // self.pool.block_tokens)
        if self.running and needed + len(self.running) > self.pool.free:
            return False
        blocks = self.pool.take(needed, keep=known)
        if blocks is None and not self.running:
            # There is room if what is known is given up.
            known.clear()
            blocks = self.pool.take(needed)
        if blocks is None:
            return False
        sequence.blocks = blocks
        return True

    def _join(self, plan: StepPlan, sequence: Sequence, known: list[int]) -> None:
        self._copies += [Copy(*pair) for pair in zip(known, sequence.blocks, strict=False)]
        sequence.computed = len(known) * self.pool.block_tokens
        self.pool.fill(sequence.chain, sequence.token_ids, sequence.computed, sequence.blocks)
        self.pool.expect(sequence.chain, sequence.token_ids)
        if not sequence.has_begun:
            sequence.has_begun = True
            plan.begun.append((sequence.sequence_id, sequence.computed))
            self.prompt_tokens += len(sequence.request.prompt_ids)
            self.prefix_hit_tokens += sequence.computed
        self.running.append(sequence)
        self.running.sort()
