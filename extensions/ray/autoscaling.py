"""Decide the number of replicas by the seconds of work that are queued.

Serve pickles this module by value into its controller: it imports nothing of ours.
"""

import math
from typing import Any

QUEUED_S = "queued_s"
"""The name of the metric that each replica reports."""


class QueuedSeconds:
    """A policy of Serve's autoscaling. Serve bounds its result, and applies the delays of the config."""

    def __init__(self, target_s: float) -> None:
        """`target_s`: seconds of queued work for each replica."""
        self._target_s = target_s

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the wanted number of replicas, and the state for the next call.

        Requests that wait for a first replica are calls of a handle. With replicas, at least one of them stays while
        any work was queued within the period of the metrics.
        """
        queued_s = (context.aggregated_metrics or {}).get(QUEUED_S, {})
        if not queued_s:
            waits = context.total_num_requests > 0
            return max(context.target_num_replicas, 1 if waits else 0), {}
        return math.ceil(sum(queued_s.values()) / self._target_s), {}
