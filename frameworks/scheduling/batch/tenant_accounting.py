"""Account the device time of batches to tenants: on the device's virtual clock, and in the counts of the version."""

from collections import defaultdict
from collections.abc import Sequence

from frameworks.core.fairness import TenantShare
from frameworks.scheduling.batch.request import BatchCounts, Request
from frameworks.scheduling.batch.splitting import BatchItem
from frameworks.scheduling.device_clock import DeviceClock

Costs = dict[TenantShare, float]
"""Device seconds of each tenant of a batch."""

# A tenant may be this many batches ahead of another: the device is busy while a batch is formed.
_BATCHES_AHEAD = 2
_NEWEST_WEIGHT = 0.2


class BatchAccounting:
    """Each item is charged for its share of the padded batch, by its rows. Owned by the event loop."""

    def __init__(self, clock: DeviceClock, counts: BatchCounts) -> None:
        self._clock = clock
        self._counts = counts
        # Moving average of the seconds of a batch.
        self._batch_s = 0.0

    def start(self, items: Sequence[BatchItem], expected_s: float) -> Costs:
        """Charge a batch that is handed to a worker, and return the expected cost of each tenant."""
        costs = shared_costs([(item.request, item.part.rows) for item in items], expected_s)
        self._clock.start(costs)
        return costs

    def finish(self, costs: Costs, running: Sequence[BatchItem], compute_s: float | None) -> None:
        """Correct the charges of a batch that ended. `running`: the items that ran; the others are not charged.

        `compute_s`: None for a batch that failed; its items are charged the expected cost.
        """
        seconds = sum(costs.values()) if compute_s is None else compute_s
        actual = shared_costs([(item.request, item.part.rows) for item in running], seconds)
        self._clock.finish(costs, actual)
        if compute_s is not None:
            self._batch_s += (_NEWEST_WEIGHT if self._batch_s else 1.0) * (compute_s - self._batch_s)
            self._counts.charge(actual)

    def may_run(self, share: TenantShare) -> bool:
        """Whether a tenant is not too far ahead of the other tenants that use the device."""
        return not self._clock.is_held(share, _BATCHES_AHEAD * self._batch_s)


def shared_costs(rows: Sequence[tuple[Request, int]], seconds: float) -> Costs:
    """Divide the seconds of a batch among the tenants of its requests by their rows."""
    if not rows:
        return {}
    total = sum(count for _, count in rows)
    costs: Costs = defaultdict(float)
    for request, count in rows:
        # Requests without rows share a run of their own.
        costs[request.share] += seconds * (count / total if total else 1 / len(rows))
    return costs
