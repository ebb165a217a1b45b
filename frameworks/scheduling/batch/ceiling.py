"""How large a batch may be after one did not fit: lowered at once, raised slowly. Pure: it counts, no clock is read."""

from typing import NamedTuple

# A ceiling is raised by this factor, after so many batches near it have fitted.
_FACTOR = 1.25
_PATIENCE = 16
# After a raise that failed twice as many are waited for: of so many batches at most one is split to try.
_MOST_PATIENCE = 256


class CeilingState(NamedTuple):
    """`size`: rows times longest of the largest batch; None is no bound. `held`: the ceiling before it was raised, at
    which enough batches have fitted; 0 where there was none. `fitted`: batches near `size` since it was set.
    """

    size: int | None = None
    held: int = 0
    fitted: int = 0
    patience: int = _PATIENCE
    was_raised: bool = False


class BatchCeiling:
    """One model's. Of a size that was never in doubt nothing is refused: it is unlimited until a batch does not fit.

    A batch that does not fit halves it. It is raised by a quarter after `patience` batches near it, so that memory
    which somebody else took for a while is used again; a raise that fails costs the one batch that is split, goes back
    to what held before, and doubles the patience. Past the largest batch that was ever tried it is lifted.
    """

    def __init__(self) -> None:
        self.state = CeilingState()
        self._largest = 0

    @property
    def size(self) -> int | None:
        """Rows times longest that a batch may have; None is no bound. A single row may run whatever it is."""
        return self.state.size

    def refused(self, size: int) -> None:
        """A batch of several rows did not fit."""
        size_before, held, _, patience, was_raised = self.state
        self._largest = max(self._largest, size)
        held = held if size > held else 0
        lower = max(1, held, size // 2)
        # Batches of the old size may still come back after the first of them did.
        lower = lower if size_before is None else min(lower, size_before)
        patience = min(2 * patience, _MOST_PATIENCE) if was_raised else patience
        self.state = CeilingState(lower, held, 0, patience)

    def accepted(self, size: int) -> None:
        """A batch did fit. Only those near the ceiling say something of it: equal rows fill more than half of it."""
        self._largest = max(self._largest, size)
        ceiling, _, fitted, patience, was_raised = self.state
        if ceiling is None or 2 * size < ceiling:
            return
        if fitted + 1 < patience:
            self.state = self.state._replace(fitted=fitted + 1)
            return
        higher = max(ceiling + 1, int(ceiling * _FACTOR))
        # Two raises in a row: there is room again.
        patience = max(patience // 2, _PATIENCE) if was_raised else patience
        self.state = CeilingState(higher if higher < self._largest else None, ceiling, 0, patience, was_raised=True)

    def restore(self, before: CeilingState) -> None:
        """It was one row that fits nowhere, not the batches that it was in."""
        self.state = before
