"""What becomes of a batch that did not fit into memory: it is halved, and the next ones are smaller."""

from collections import Counter

import structlog

from frameworks.batches.rows import blocks
from frameworks.errors import OutOfMemory
from frameworks.scheduling.batch.ceiling import BatchCeiling
from frameworks.scheduling.batch.request import BatchItem

log = structlog.get_logger(__name__)


class Splitter:
    """Halves one model's batches, counts them, and keeps its ceiling."""

    def __init__(self, name: str, ceiling: BatchCeiling, batches_split: Counter[int]) -> None:
        """`batches_split`: how many batches of how many rows were split is added up there."""
        self._name = name
        self._ceiling = ceiling
        self._batches_split = batches_split
        self._has_warned = False

    def split(self, members: list[BatchItem], error: OutOfMemory) -> list[list[BatchItem]]:
        """What runs in the place of these members' batch. None where their one row fits nowhere, or rows stay together.

        Then it was not the size of the batches that the row was in: the ceiling is what it was before them.
        """
        parts = halves(members)
        before = next((member.ceiling_before for member in members if member.ceiling_before), self._ceiling.state)
        if not parts:
            self._ceiling.restore(before)
            return []
        rows = sum(member.part.rows for member in members)
        self._ceiling.refused(max(1, rows) * max(member.part.length for member in members))
        self._batches_split[rows] += 1
        for half in parts:
            for member in half:
                member.ceiling_before = before
        if not self._has_warned:
            # Once: from then on the counter says how often.
            self._has_warned = True
            log.warning(
                "a batch did not fit and was split; the next ones are smaller",
                model=self._name,
                rows=rows,
                ceiling=self._ceiling.size,
                reason=error.message,
            )
        return parts


def halves(members: list[BatchItem]) -> list[list[BatchItem]]:
    """A batch's members in two batches; none where it is a single row, or rows that stay together.

    The short ones and the long ones go apart: padding, too, takes memory. Only what was alone is cut.
    """
    middle = len(members) // 2
    if middle:
        by_length = sorted(members, key=lambda member: member.part.length)
        return [by_length[:middle], by_length[middle:]]
    [member] = members
    if member.part.rows <= 1 or not member.request.signature.shares:
        return []
    return [[each] for each in recut(member, -(-member.part.rows // 2))]


def recut(member: BatchItem, max_rows: int) -> list[BatchItem]:
    """A member in parts of at most so many rows; its request waits for them all."""
    members = []
    for part in blocks(member.part, max_rows):
        members.append(BatchItem(member.request, member.progress, part))
        members[-1].ceiling_before = member.ceiling_before
    member.progress.missing += len(members) - 1
    return members
