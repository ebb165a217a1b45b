"""Assign rows of shared memory to the limits of a server of several processes."""

from collections.abc import Iterable
from dataclasses import dataclass

from memory.shared_counters import CounterRow, SharedCounters
from memory.shared_pairs import SharedPair, SharedPairs

OPEN_CELL = 5
"""Open connections, in the row of the server: behind the cells of its requests and bytes."""

_MAX_MODELS = 4096


@dataclass(frozen=True, slots=True)
class TenantShare:
    """The shared counts of a tenant: of its requests, sequences and bytes; and its two token buckets."""

    row: CounterRow
    requests: SharedPair
    tokens: SharedPair


class SharedLimits:
    """Memory for the counts of all limits, which hold over N workers and their supervisor.

    Create it in the supervisor before the fork. A worker calls `use` with its number before it creates limits. The
    supervisor calls `release` after a worker has ended; it alone allocates and frees the rows of models.
    """

    def __init__(self, workers: int, tenants: Iterable[str], max_models: int = _MAX_MODELS) -> None:
        """`tenants`: the names of those with limits. `max_models`: that are registered at once. Raises OSError."""
        names = list(tenants)
        self._counters = SharedCounters(workers + 1, 1 + len(names) + max_models, workers)
        self._pairs = SharedPairs(2 * len(names))
        self._server = self._counters.allocate_row()
        self._tenants = {name: (self._counters.allocate_row(), index) for index, name in enumerate(names)}

    def use(self, worker: int) -> None:
        """Count as this worker, from 0."""
        self._counters.use(worker)

    def release(self, worker: int) -> None:
        """Drop all that a worker counted. Tokens that it used stay charged."""
        self._counters.release(worker)

    def allocate_row(self) -> int:
        """Return the number of the row of a new model. Raises NoFreeRow."""
        return self._counters.allocate_row()

    def free_row(self, number: int) -> None:
        """Take back the row of a model that was deleted; requests to it may still be in progress."""
        self._counters.free_row(number)

    def server(self) -> CounterRow:
        """Return the row of all requests, bodies and connections."""
        return self._counters.row(self._server)

    def model(self, number: int) -> CounterRow:
        """Return the row of a model."""
        return self._counters.row(number)

    def tenant(self, name: str) -> TenantShare:
        """Return the counts of a tenant."""
        row, index = self._tenants[name]
        return TenantShare(self._counters.row(row), self._pairs.pair(2 * index), self._pairs.pair(2 * index + 1))
