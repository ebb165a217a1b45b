"""A key/value memory that says of each of its places what was written there: all the tokens up to that one."""

from frameworks.generation.scheduler import Sequence, StepPart, StepPlan

_Place = tuple[int, ...] | None


class BlockMemory:
    """What a scheduler's plans do to a real one. Keys and values depend on every token up to their own."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: list[list[_Place]] = [[None] * block_tokens for _ in range(blocks)]

    def carry_out(self, plan: StepPlan) -> None:
        """Raises AssertionError where a sequence would read anything but its own beginning."""
        for copy in plan.copies:
            self._blocks[copy.destination] = list(self._blocks[copy.source])
        # Every layer writes for all the sequences before any of them reads.
        for part in plan.parts:
            for position in range(part.start, part.start + part.count):
                self._write(part.sequence, position)
        for part in plan.parts:
            self._check(part)

    def _write(self, sequence: Sequence, position: int) -> None:
        block = sequence.blocks[position // self._block_tokens]
        self._blocks[block][position % self._block_tokens] = tuple(sequence.token_ids[: position + 1])

    def _check(self, part: StepPart) -> None:
        sequence = part.sequence
        for position in range(part.start + part.count):
            block = sequence.blocks[position // self._block_tokens]
            read = self._blocks[block][position % self._block_tokens]
            assert read == tuple(sequence.token_ids[: position + 1]), (sequence.sequence_id, position, read)
