"""Define the contract of the models in a replica of Ray Serve, of one or of several, and sum up their versions."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from extensions.ray.handshake import Handshake
from extensions.ray.replica.clients import HostedVersion
from frameworks.core.channel.channel import Channel
from frameworks.engine.process.wire.messages import ToEngine


class Hosted(Protocol):
    """Owned by the event loop."""

    is_dead: bool
    """Whether a loaded version will never answer again: the replica has to be replaced."""

    @property
    def num_calls(self) -> int:
        """Requests of all clients in progress."""
        ...

    @property
    def queued_s(self) -> float:
        """The seconds that the requests of all versions will take."""
        ...

    def running_s(self) -> float:
        """Return the seconds for which the longest batch or step runs."""
        ...

    async def open(self) -> None:
        """Load what has to be loaded before the replica serves. Raises InvalidModel."""
        ...

    def accept(self, handshake: Handshake) -> Channel[ToEngine]:
        """Return the channel of a new client; its version is loaded where it is not."""
        ...

    def check(self) -> None:
        """Drop silent clients. Call it every few seconds."""
        ...

    def close(self) -> None:
        """End all requests, connections and engines."""
        ...


class VersionTotals(ABC):
    """Implement the part of Hosted that adds up the versions of a replica."""

    @property
    @abstractmethod
    def all(self) -> Sequence[HostedVersion]:
        """Every version, also those that are not loaded."""

    @property
    def num_calls(self) -> int:
        """As Hosted.num_calls."""
        return sum(each.host.num_calls for each in self.all)

    @property
    def queued_s(self) -> float:
        """As Hosted.queued_s."""
        return sum(each.host.queued_s for each in self.all)

    def running_s(self) -> float:
        """As Hosted.running_s."""
        engines = [each.host.engine for each in self.all]
        since = [each.running_since_s for each in engines if each is not None and each.running_since_s is not None]
        return time.perf_counter() - min(since) if since else 0.0
