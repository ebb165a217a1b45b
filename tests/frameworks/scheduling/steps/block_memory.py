"""A key/value cache whose places record all tokens up to their own."""

from frameworks.scheduling.steps.sequence import StepPart, StepPlan

_Place = tuple[int, ...] | None


class BlockMemory:
    """Execute a scheduler's plans as a real cache would. Keys and values depend on every token up to their own."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: list[list[_Place]] = [[None] * block_tokens for _ in range(blocks)]

    def carry_out(self, plan: StepPlan) -> None:
        """Raise AssertionError if a sequence reads anything but its own prefix."""
        for copy in plan.copies:
            self._blocks[copy.destination] = list(self._blocks[copy.source])
        # Every layer writes for all sequences before any of them reads.
        for part in plan.parts:
            for position in range(part.start, part.start + part.num_tokens):
                self._write(part, position)
        for part in plan.parts:
            self._check(part)

    def _write(self, part: StepPart, position: int) -> None:
        block = part.sequence.blocks[position // self._block_tokens]
        known = (*part.sequence.content_ids, *part.proposed)
        self._blocks[block][position % self._block_tokens] = known[: position + 1]

    def _check(self, part: StepPart) -> None:
        sequence = part.sequence
        known = (*sequence.content_ids, *part.proposed)
        for position in range(part.start + part.num_tokens):
            block = sequence.blocks[position // self._block_tokens]
            read = self._blocks[block][position % self._block_tokens]
            assert read == known[: position + 1], (sequence.sequence_id, position, read)
