"""Create parts of sequences in a step with blocks chosen by the test."""

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.steps.sequence import Sequence, StepPart


def part_of(blocks: list[int], start: int, count: int, *, is_last: bool = True) -> StepPart:
    token_ids = tuple(range(100, 100 + start + count + (not is_last)))
    sequence = Sequence(SequenceRequest(0, token_ids, 1, Sampling(), priority=5), 0.0)
    sequence.blocks = blocks
    return StepPart(sequence, start, count)
