"""Tell the ingresses what a replica that models share has loaded."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from extensions.ray.replica.clients import SILENT_S
from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ProtocolError
from frameworks.engine.process.wire.messages import FromEngine, Ping, Pong, ReplicaReport, ToEngine

REPORT_S = 0.1
"""Interval of the reports, where something has changed."""


class Follower:
    """The channel to one ingress. Owned by the event loop."""

    def __init__(self, ended: Callable[["Follower"], None]) -> None:
        """`ended`: called once, when the connection has ended."""
        self._ended = ended
        self.channel: Channel[ToEngine] = Channel(ToEngine, self._received, self._lost)
        self._heard_s = time.monotonic()
        self._sent: ReplicaReport | None = None

    def report(self, state: ReplicaReport, evictions: Mapping[str, int]) -> bool:
        """Send what has changed. Returns whether the evictions were sent."""
        if not self.channel.is_open or (state == self._sent and not evictions):
            return False
        self._sent = state
        self._send(
            ReplicaReport(state.versions, state.free_bytes, state.queued_s, dict(evictions)) if evictions else state
        )
        return bool(evictions)

    def check(self, now_s: float) -> None:
        """Drop a client that has been silent for too long."""
        if now_s - self._heard_s > SILENT_S:
            self.channel.fail(f"the client sent nothing for {SILENT_S:.0f} s")

    def close(self) -> None:
        """End the connection."""
        self.channel.close()

    def _received(self, messages: Sequence[ToEngine]) -> None:
        self._heard_s = time.monotonic()
        for message in messages:
            if not isinstance(message, Ping):
                raise ProtocolError(f"expected a Ping, got {type(message).__name__}")
            self._send(Pong(message.number, 0.0, time.perf_counter()))

    def _send(self, message: FromEngine) -> None:
        if self.channel.is_open:
            self.channel.send(message)

    def _lost(self, _: str) -> None:
        self._ended(self)


class Followers:
    """Owned by the event loop."""

    def __init__(self, state: Callable[[], ReplicaReport], evictions: Counter[str]) -> None:
        """`state`: returns that of the replica. `evictions`: by model, counted elsewhere."""
        self._state = state
        self._evictions = evictions
        self._reported: Counter[str] = Counter()
        self._followers: list[Follower] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self) -> Channel[ToEngine]:
        """Return the channel of a new follower."""
        follower = Follower(self._followers.remove)
        self._followers.append(follower)
        asyncio.get_running_loop().call_soon(self.report)
        if self._timer is None:
            self._tick()
        return follower.channel

    def report(self) -> None:
        """Send what has changed. The first follower gets the evictions: their sum over all ingresses is right."""
        if not self._followers:
            return
        state = self._state()
        for follower in self._followers:
            evictions = self._evictions - self._reported
            if follower.report(state, evictions):
                self._reported += evictions

    def check(self, now_s: float) -> None:
        """Drop silent followers."""
        for follower in list(self._followers):
            follower.check(now_s)

    def close(self) -> None:
        """End the connections."""
        if self._timer is not None:
            self._timer.cancel()
        for follower in self._followers:
            follower.close()

    def _tick(self) -> None:
        self.report()
        if self._followers:
            self._timer = asyncio.get_running_loop().call_later(REPORT_S, self._tick)
        else:
            self._timer = None
