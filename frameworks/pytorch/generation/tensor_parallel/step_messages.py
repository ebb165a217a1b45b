"""A step as one message of int32: the copies of blocks, and for each part its tokens, its start and its blocks."""

from collections.abc import Iterator

import numpy as np

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.scheduling.steps.blocks import Copy
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan
from frameworks.types import DEFAULT_PRIORITY

# The part has the tokens; its sequence only their blocks.
_REQUEST = SequenceRequest(0, (), 1, Sampling(), priority=DEFAULT_PRIORITY)
_PART_FIELDS = 4


def encode_step(plan: StepPlan) -> bytes:
    """Return the message of a step whose tokens the host has read."""
    values = [len(plan.copies), len(plan.parts)]
    for copy in plan.copies:
        values += (copy.source, copy.destination)
    for part in plan.parts:
        blocks = part.sequence.blocks[: _num_blocks(part.start + part.num_tokens)]
        values += (part.start, part.num_tokens, part.num_logits, len(blocks))
        values += part.token_ids
        values += blocks
    return np.asarray(values, dtype=np.int32).tobytes()


def decode_step(message: bytes) -> StepPlan:
    """Return a plan with the copies and the parts of a message, for the runner of another rank."""
    values: list[int] = np.frombuffer(message, dtype=np.int32).tolist()
    num_copies, num_parts = values[:2]
    first = 2 + 2 * num_copies
    copies = [Copy(source, destination) for source, destination in _pairs(values[2:first])]
    parts: list[StepPart] = []
    for _ in range(num_parts):
        start, num_tokens, num_logits, num_blocks = values[first : first + _PART_FIELDS]
        first += _PART_FIELDS
        sequence = Sequence(_REQUEST, 0.0)
        sequence.blocks = values[first + num_tokens : first + num_tokens + num_blocks]
        parts.append(SentPart(sequence, start, num_tokens, values[first : first + num_tokens], num_logits))
        first += num_tokens + num_blocks
    return StepPlan(copies, parts)


class SentPart(StepPart):
    """A part whose tokens and number of logits are known without its sequence."""

    __slots__ = ("_sent_ids",)

    def __init__(self, sequence: Sequence, start: int, num_tokens: int, token_ids: list[int], num_logits: int) -> None:
        self.sequence, self.start, self.num_tokens = sequence, start, num_tokens
        self.proposed = ()
        self.is_scored = num_logits > 1
        self.completes = num_logits > 0
        self.num_sampled = self.num_logits = num_logits
        self._sent_ids = token_ids

    @property
    def token_ids(self) -> list[int]:
        return self._sent_ids


def _pairs(values: list[int]) -> Iterator[tuple[int, int]]:
    return zip(values[::2], values[1::2], strict=True)


def _num_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
