"""The clocks and bounds of HTTP/2 connections: how long each may wait for its client, and for a slow reader."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.config import ServerSettings
from app.http.listener.clocks import HEADER, LEAST_READ_BYTES, READER, STALL_S, Connections

# Where nothing is to be enforced soon, the clocks are looked at this much less often.
_IDLE_FACTOR = 10


@dataclass(frozen=True, slots=True)
class Http2Bounds:
    """The bounds of connections, in seconds. Clients of HTTP/2 connect again by themselves.

    `max_streams`: open on one connection; the client queues more. `preface_s`: until a new connection has sent
    HTTP/2's first bytes. `idle_s`: without a stream, until it is closed. `age_s`: until it accepts no further streams.
    `grace_s`: after that until it is closed. `ping_s`: without a byte from the client, until the server asks whether
    it lives. `pong_s`: after that, until the connection is closed. `check_s`: between two looks at the clocks.
    """

    max_streams: int = 256
    preface_s: float = 10.0
    idle_s: float = 600.0
    age_s: float = 3600.0
    grace_s: float = 3600.0
    ping_s: float = 60.0
    pong_s: float = 20.0
    check_s: float = 1.0


def http2_bounds(settings: ServerSettings) -> Http2Bounds:
    """Return the bounds of the settings."""
    age_s = settings.grpc_max_connection_age_s
    return Http2Bounds(preface_s=settings.header_timeout_s, age_s=age_s, grace_s=age_s)


class Http2Stream(Protocol):
    """The receiver of one stream's events."""

    def receive(self, data: bytes, is_end: bool) -> None:
        """Take a part of the body, maybe empty. `Http2Connection.consumed` lets the client send more."""

    def closed(self) -> None:
        """End: the response was sent, the client has reset the stream, or the connection is lost."""

    def has_space(self) -> None:
        """Continue: the client has taken what `Http2Connection.unsent_bytes` counts for this stream."""

    def check(self, now_s: float) -> None:
        """Look at the clocks of this stream. `now_s`: on the monotonic clock."""


class ClockedConnection(ABC):
    """The clocks of a connection. One timer serves all of them, and those of its streams."""

    def __init__(self, bounds: Http2Bounds, limits: Connections) -> None:
        self._bounds = bounds
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Http2Stream] = {}
        self._has_preface = self._is_draining = self._has_pinged = False
        self._opened_s = self._received_s = self._idle_since_s = time.monotonic()
        self._drained_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # When the progress of a reader that is behind was last noted, and the bytes that it had taken.
        self._noted_s: float | None = None
        self._noted_bytes = 0

    @property
    def streams(self) -> Mapping[int, Http2Stream]:
        """The open streams by their ids."""
        return self._streams

    @property
    @abstractmethod
    def taken_bytes(self) -> int:
        """Bytes that the kernel has taken since the connection was opened."""

    @property
    @abstractmethod
    def is_behind(self) -> bool:
        """Whether bytes wait for the client."""

    @abstractmethod
    def check_answered(self, now_s: float) -> None: ...

    @abstractmethod
    def drain(self) -> None: ...

    @abstractmethod
    def refuse_streams(self) -> None: ...

    @abstractmethod
    def ask_for_life(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    def start_clocks(self) -> None:
        """Look at the clocks in a while, and again, until `stop_clocks`."""
        is_soon = self._streams or self._is_draining or not self._has_preface
        after_s = self._bounds.check_s * (1 if is_soon else _IDLE_FACTOR)
        self._timer = self._loop.call_later(after_s, self._check)

    def stop_clocks(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.start_clocks()
        now_s = time.monotonic()
        for stream in list(self._streams.values()):
            stream.check(now_s)
        self.check_answered(now_s)
        if self._is_reader_slow(now_s):
            return
        bounds = self._bounds
        if not self._has_preface:
            if now_s - self._opened_s > bounds.preface_s:
                self._limits.closed[HEADER] += 1
                self.abort()
        elif self._is_draining:
            self._check_drain(now_s - self._drained_s)
        elif now_s - self._opened_s > bounds.age_s or self._idle_s(now_s) > bounds.idle_s:
            self.drain()
        else:
            self._check_life(now_s - self._received_s)

    def _idle_s(self, now_s: float) -> float:
        return 0.0 if self._streams else now_s - self._idle_since_s

    def _check_drain(self, since_s: float) -> None:
        if since_s > self._bounds.grace_s:
            self.abort()
        elif not self._streams and since_s > self._bounds.pong_s:
            self.refuse_streams()  # the client does not answer

    def _check_life(self, silent_s: float) -> None:
        """Find out whether a client that sends nothing is still there."""
        if self._has_pinged:
            if silent_s > self._bounds.ping_s + self._bounds.pong_s:
                self.abort()
        elif silent_s > self._bounds.ping_s:
            self._has_pinged = True
            self.ask_for_life()

    def _is_reader_slow(self, now_s: float) -> bool:
        """Close the connection of a client that takes next to nothing of what is sent: unread bytes take memory."""
        if not self.is_behind:
            self._noted_s = None
            return False
        if self._noted_s is not None and now_s - self._noted_s <= STALL_S:
            return False
        taken_bytes = self.taken_bytes
        if self._noted_s is not None and taken_bytes - self._noted_bytes <= LEAST_READ_BYTES:
            self._limits.closed[READER] += 1
            self.abort()
            return True
        self._noted_s, self._noted_bytes = now_s, taken_bytes
        return False
