"""Define what a run needs of a protocol's client, and what the clients of HTTP and gRPC share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from extensions.load_test.inputs.bodies import Body
from extensions.load_test.results.tally import Outcome
from extensions.load_test.target import Target

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


class Exchange(Protocol):
    """One place for a connection, and the requests sent over it, one at a time."""

    async def run(self, body: Body, planned_s: float, is_delayed: bool) -> Outcome:
        """Send one request. `is_delayed`: it is planned again for the time when the connection is open."""
        ...

    async def wait(self) -> None:
        """Wait as long as no connection may be opened."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Client(Protocol):
    """Opens the places of one run."""

    @property
    def target(self) -> Target: ...

    @property
    def counts(self) -> ConnectionCounts: ...

    @property
    def back_off(self) -> BackOff: ...

    def exchange(self, pause: Pause) -> Exchange:
        """Return a place without a connection."""
        ...
