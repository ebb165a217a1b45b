"""The engine of a version in a replica, which learns the seconds that a request takes, and reports its queue."""

import math
import time
from collections.abc import Callable

from frameworks.engine.process.host.hosted_calls import HostedClient
from frameworks.engine.process.host.hosted_engine import HostedEngine
from frameworks.engine.process.wire.messages import QueueState
from frameworks.engine.threads import EngineThreads

_MEMORY_S = 30.0
"""Age at which a run counts a third."""
_CHANGE = 0.1
"""Another cost per request is reported when it has changed by this share."""


class CallCost:
    """The seconds of the device for one request, learned from all that have ended."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._calls = 0.0

    @property
    def call_s(self) -> float:
        """The expected seconds; all that has run so far before the first request has ended."""
        return self._busy_s / max(1.0, self._calls)

    def observe(self, busy_s: float, calls: int, elapsed_s: float) -> None:
        """Note the run time and the requests that have ended within the last `elapsed_s` seconds."""
        kept = math.exp(-elapsed_s / _MEMORY_S) if busy_s or calls else 1.0
        self._busy_s = kept * self._busy_s + busy_s
        self._calls = kept * self._calls + calls


class MeteredEngine(HostedEngine):
    """Owned by the event loop."""

    def __init__(self, threads: EngineThreads, tidy: Callable[[], None], died: Callable[[], None]) -> None:
        """As HostedEngine."""
        super().__init__(threads, tidy, died)
        self.cost = CallCost()
        self._learned_s = time.monotonic()
        self._learned_done = 0
        self._sent: dict[HostedClient, QueueState] = {}

    @property
    def num_calls(self) -> int:
        """Requests of all clients in progress here."""
        return sum(len(client.calls) for client in self.clients)

    @property
    def queued_s(self) -> float:
        """The seconds that the requests will take which are here, or wait at clients for this replica."""
        return self.cost.call_s * sum(len(client.calls) + client.waiting for client in self.clients)

    def send_counts(self) -> None:
        """Also learn from the runs, and report the queue to clients that share the replica."""
        if self.reporter is not None:
            self._learn()
        super().send_counts()
        self._report_queue()

    def _learn(self) -> None:
        counts, now_s = self._growth.counts, time.monotonic()
        busy_s = sum(counts.batches.seconds.values()) + sum(counts.generated.steps.seconds.values())
        self.cost.observe(busy_s, self.num_done - self._learned_done, now_s - self._learned_s)
        self._learned_s, self._learned_done = now_s, self.num_done

    def _report_queue(self) -> None:
        total, call_s = self.num_calls, self.cost.call_s
        self._sent = {client: self._sent[client] for client in self.clients if client in self._sent}
        for client in self.clients:
            sent, others = self._sent.get(client), total - len(client.calls)
            if sent is not None and sent.others == others and abs(call_s - sent.call_s) <= _CHANGE * sent.call_s:
                continue
            if client.sender.is_open:
                state = self._sent[client] = QueueState(call_s, others)
                client.sender.send(state)
