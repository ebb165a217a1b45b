"""The base of the models in a replica of Ray Serve, of one or of several."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

from extensions.ray.handshake import Handshake
from extensions.ray.replica.clients import HostedVersion
from frameworks.core.channel.channel import Channel
from frameworks.engine.process.wire.messages import ToEngine


class Hosted(ABC):
    """Owned by the event loop."""

    def __init__(self) -> None:
        """Call `open` next."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_dead = False
        """Whether a loaded version will never answer again: the replica has to be replaced."""

    @property
    @abstractmethod
    def all(self) -> Sequence[HostedVersion]:
        """Every version, also those that are not loaded."""

    @abstractmethod
    async def open(self) -> None:
        """Load what has to be loaded before the replica serves. Raises InvalidModel."""

    @abstractmethod
    def accept(self, handshake: Handshake) -> Channel[ToEngine]:
        """Return the channel of a new client; its version is loaded where it is not."""

    @abstractmethod
    def close(self) -> None:
        """End all requests, connections and engines."""

    @property
    def num_calls(self) -> int:
        """Requests of all clients in progress."""
        return sum(each.host.num_calls for each in self.all)

    @property
    def queued_s(self) -> float:
        """The seconds that the requests of all versions will take."""
        return sum(each.host.queued_s for each in self.all)

    def running_s(self) -> float:
        """Return the seconds for which the longest batch or step runs."""
        engines = [each.host.engine for each in self.all]
        since = [each.running_since_s for each in engines if each is not None and each.running_since_s is not None]
        return time.perf_counter() - min(since) if since else 0.0

    def check(self) -> None:
        """Drop silent clients. Call it every few seconds."""
        now_s = time.monotonic()
        for version in self.all:
            for client in list(version.clients):
                client.check(now_s)

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
