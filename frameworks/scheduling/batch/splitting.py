"""Split batches that do not fit in memory, and limit the size of later batches.

The ceiling is lowered at once and raised slowly. It counts batches; no clock is read.
"""

from collections import Counter
from typing import NamedTuple

import structlog

from frameworks.core.errors import OutOfMemory
from frameworks.scheduling.batch.request import Progress, Request
from frameworks.scheduling.merging.rows import Part, blocks

log = structlog.get_logger(__name__)

# A ceiling is raised by this factor after `_PATIENCE` batches near it have fitted.
_FACTOR = 1.25
_PATIENCE = 16
# After a raise that failed, twice as many batches must fit: at most one batch in 256 is split by a trial.
_MAX_PATIENCE = 256


class CeilingState(NamedTuple):
    """`size`: rows times longest row of the largest batch; None means no bound.

    `held`: the ceiling before it was raised, at which enough batches have fitted; 0 if there was none. `fitted`:
    batches near `size` since it was set. `patience`: how many of them must fit before the ceiling is raised.
    """

    size: int | None = None
    held: int = 0
    fitted: int = 0
    patience: int = _PATIENCE
    was_raised: bool = False


class BatchCeiling:
    """The ceiling on the batch size of one model. There is none until a batch does not fit.

    A batch that does not fit halves the ceiling. It is raised by a quarter after `patience` batches near it, so memory
    that another process used for a while is used again. A raise that fails costs the one batch that is split, restores
    the ceiling before it, and doubles the patience. Past the largest batch ever tried the ceiling is removed.
    """

    def __init__(self) -> None:
        self.state = CeilingState()
        self._largest = 0

    @property
    def size(self) -> int | None:
        """Rows times longest row that a batch may have; None means no bound. A single row may always run."""
        return self.state.size

    def refused(self, size: int) -> None:
        """Record a batch of several rows that did not fit."""
        size_before, held, _, patience, was_raised = self.state
        self._largest = max(self._largest, size)
        held = held if size > held else 0
        lower = max(1, held, size // 2)
        # Batches of the old size may still finish after the first one that did not fit.
        lower = lower if size_before is None else min(lower, size_before)
        patience = min(2 * patience, _MAX_PATIENCE) if was_raised else patience
        self.state = CeilingState(lower, held, 0, patience)

    def accepted(self, size: int) -> None:
        """Record a batch that fitted. Only batches near the ceiling count: equal rows fill more than half of it."""
        self._largest = max(self._largest, size)
        ceiling, _, fitted, patience, was_raised = self.state
        if ceiling is None or 2 * size < ceiling:
            return
        if fitted + 1 < patience:
            self.state = self.state._replace(fitted=fitted + 1)
            return
        higher = max(ceiling + 1, int(ceiling * _FACTOR))
        # Two raises in a row show that memory is free again.
        patience = max(patience // 2, _PATIENCE) if was_raised else patience
        self.state = CeilingState(higher if higher < self._largest else None, ceiling, 0, patience, was_raised=True)

    def restore(self, before: CeilingState) -> None:
        """Undo a change that one row caused which fits in no batch."""
        self.state = before


class BatchItem:
    """One part of a request in a batch. `progress`: that of its request."""

    __slots__ = ("ceiling_before", "part", "progress", "request")

    def __init__(self, request: Request, progress: Progress, part: Part) -> None:
        self.request = request
        self.progress = progress
        self.part = part
        self.ceiling_before: CeilingState | None = None
        """For a part of a batch that was split: the ceiling before the split."""


class Splitter:
    """Halves the batches of one model that do not fit, counts them, and updates the ceiling."""

    def __init__(self, name: str, ceiling: BatchCeiling, batches_split: Counter[int]) -> None:
        """`batches_split`: by number of rows, how many batches were split; counted up here."""
        self._name = name
        self._ceiling = ceiling
        self._batches_split = batches_split
        self._has_warned = False

    def split(self, items: list[BatchItem], length: float, error: OutOfMemory) -> list[list[BatchItem]]:
        """Return the batches that run instead of the batch of these items. `length`: of the batch.

        The list is empty if the batch is one row, or rows that must stay together. Its size was not the cause then,
        and the ceiling becomes what it was before the batches that held the row.
        """
        parts = halves(items)
        before = next((item.ceiling_before for item in items if item.ceiling_before), self._ceiling.state)
        if not parts:
            self._ceiling.restore(before)
            return []
        rows = sum(item.part.rows for item in items)
        self._ceiling.refused(round(max(1, rows) * length))
        self._batches_split[rows] += 1
        for half in parts:
            for item in half:
                item.ceiling_before = before
        if not self._has_warned:
            # Logged once; the counter has the number of splits.
            self._has_warned = True
            log.warning(
                "batch did not fit and was split; later batches are smaller",
                model=self._name,
                rows=rows,
                ceiling=self._ceiling.size,
                reason=error.message,
            )
        return parts


def halves(items: list[BatchItem]) -> list[list[BatchItem]]:
    """Return the items of a batch in two batches; none if it is a single row, or rows that must stay together.

    Short and long rows are separated, as padding takes memory too. A part is cut only if it is alone.
    """
    middle = len(items) // 2
    if middle:
        by_length = sorted(items, key=lambda item: item.part.length)
        return [by_length[:middle], by_length[middle:]]
    [item] = items
    if item.part.rows <= 1 or not item.request.signature.shares:
        return []
    return [[each] for each in split_item(item, -(-item.part.rows // 2))]


def split_item(item: BatchItem, max_rows: int) -> list[BatchItem]:
    """Cut an item into items of at most `max_rows` rows; its request waits for all of them."""
    items = []
    for part in blocks(item.part, max_rows):
        items.append(BatchItem(item.request, item.progress, part))
        items[-1].ceiling_before = item.ceiling_before
    item.progress.num_pending += len(items) - 1
    return items
