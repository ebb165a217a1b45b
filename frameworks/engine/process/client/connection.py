"""The server's end of a connection to an engine process: its channel and its shared memory."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import ChannelLost, ChannelMessage, ProtocolError
from frameworks.engine.process.wire.messages import Closed, Free, FromEngine, ToEngine
from frameworks.engine.process.wire.shared_tensors import SharedTensors
from frameworks.types import Array
from memory.shared_arena import SharedArena

ARENA_BYTES = 1024**3
"""Bound of the tensors of one direction. Only pages that were written take memory; tensors beyond it are copied."""

PROTOCOL = "protocol"
"""The label of a process that has sent a damaged message, or has closed its connection without a reason."""

_TRIM_S = 1.0

# The messages that are for the connection itself.
_OWN = frozenset({Free, Closed})


class ProcessLink(ABC):
    """Implement what all Links have. Owned by the event loop."""

    def __init__(self, written: SharedArena, read: SharedArena) -> None:
        """`written`: for tensors of requests; `read`: for those of answers."""
        self._tensors = SharedTensors(written, read, self.send)
        self._channel: Channel[FromEngine] = Channel(
            FromEngine, self._received, self._channel_lost, self._tensors, self._tensors.find
        )
        self._receive: Callable[[Sequence[Any]], None]
        """Called with the messages that are not for the connection. Raises ProtocolError."""
        self._trim = asyncio.get_running_loop().call_later(_TRIM_S, self._trim_idle)

    @property
    def num_leases(self) -> int:
        return self._tensors.num_in_use

    @property
    def is_full(self) -> bool:
        return self._channel.is_full

    def lease_body(self, nbytes: int) -> Array | None:
        return self._tensors.lease_body(nbytes)

    def send(self, message: ToEngine) -> None:
        try:  # noqa: SIM105 - suppress takes three calls
            self._channel.send(message)
        except ChannelLost:  # the listener learns of it from the end of the process
            pass

    @abstractmethod
    def kill(self, label: str, reason: str) -> None:
        """As Link.kill."""

    @abstractmethod
    def _channel_lost(self, reason: str) -> None:
        """Called once, when the channel has ended and `_close_connection` was not called."""

    def _close_connection(self) -> None:
        """Close the channel and the arenas."""
        self._trim.cancel()
        self._channel.close()
        self._tensors.close()

    def _received(self, messages: Sequence[FromEngine]) -> None:
        try:
            if not _OWN.isdisjoint(map(type, messages)):
                messages = [message for message in messages if not self._is_own(message)]
            self._receive(messages)
        except ProtocolError as error:
            self.kill(PROTOCOL, f"it sent a damaged message: {error.message}")

    def _is_own(self, message: ChannelMessage) -> bool:
        """Process the messages that are for the connection itself. Raises ProtocolError."""
        if isinstance(message, Free):
            self._tensors.freed(message)
        elif not isinstance(message, Closed):
            return False
        return True

    def _trim_idle(self) -> None:
        self._tensors.trim()
        self._trim = asyncio.get_running_loop().call_later(_TRIM_S, self._trim_idle)
