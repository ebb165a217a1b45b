"""The base of the clients of HTTP and gRPC: the connections of a run, and its callers."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from extensions.load_test.inputs.bodies import RequestContent
from extensions.load_test.results.tally import Outcome
from extensions.load_test.target import LoadTarget

Pause = Callable[[float], Awaitable[None]]
"""Sleeps for seconds, and ends early when the run does."""


@dataclass(slots=True)
class ConnectionCounts:
    """Connections of the whole run."""

    opened: int = 0
    closed_by_server: int = 0
    failed: int = 0


class BackOff:
    """Delays new connections while the server refuses or drops them: 50 ms, doubled up to 2 s. Shared by all."""

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._until_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a connection may be opened."""
        return max(0.0, self._until_s - now_s)

    def fail(self, now_s: float) -> None:
        """Report a failure. Failures during a delay do not make it longer."""
        if now_s >= self._until_s:
            self._delay_s = min(2.0, max(0.05, self._delay_s * 2))
            self._until_s = now_s + self._delay_s

    def succeed(self) -> None:
        """Report a response."""
        self._delay_s = self._until_s = 0.0


class Client(ABC):
    """Sends the requests of one run."""

    def __init__(self, target: LoadTarget, timeout_s: float) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self.counts = ConnectionCounts()
        self.back_off = BackOff()

    @abstractmethod
    def caller(self, pause: Pause) -> "TargetCaller":
        """Return a caller without a connection."""


class TargetCaller(ABC):
    """Sends requests over its connection, one after another, and opens it again when it was closed."""

    def __init__(self, client: Client, pause: Pause) -> None:
        self._counts = client.counts
        self._back_off = client.back_off
        self._pause = pause

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether the next request needs no new connection."""

    @abstractmethod
    async def run(self, body: RequestContent, planned_s: float, is_delayed: bool) -> Outcome:
        """Send one request. `is_delayed`: it is planned again for the time when the connection is open."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    async def wait(self) -> None:
        """Wait as long as no connection may be opened."""
        if not self.is_connected and (wait_s := self._back_off.wait_s(time.monotonic())) > 0:
            await self._pause(wait_s)
