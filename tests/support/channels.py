"""Two ends of a channel in one event loop, and a channel whose peer is a plain socket."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import uvloop

from frameworks.core.channel.arrays import Find, Placement
from frameworks.core.channel.channel import Channel
from frameworks.engine.process.wire.messages import FromEngine, ToEngine
from tests.support.loops import HANGS_AFTER_S, soon

EITHER = ToEngine | FromEngine
_LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class End:
    """One end of a channel, with all that it received and the reasons of its losses."""

    def __init__(self, placement: Placement | None = None, find: Find | None = None) -> None:
        self.batches: list[list[Any]] = []
        self.lost: list[str] = []
        self.channel: Channel[Any] = Channel(EITHER, self.batches.append, self.lost.append, placement, find)

    @property
    def received(self) -> list[Any]:
        """All messages in their order."""
        return [message for batch in self.batches for message in batch]

    async def received_count(self, count: int) -> list[Any]:
        """Wait for so many messages."""
        await soon(lambda: len(self.received) >= count or bool(self.lost))
        return self.received


async def open_pair(left: End | None = None, right: End | None = None) -> tuple[End, End]:
    """Return two connected ends."""
    left, right = left or End(), right or End()
    one, other = socket.socketpair()
    await left.channel.open(one)
    await right.channel.open(other)
    return left, right


async def open_to_socket(end: End | None = None) -> tuple[End, socket.socket]:
    """Return an end, and the blocking socket of its peer."""
    end = end or End()
    one, other = socket.socketpair()
    other.settimeout(HANGS_AFTER_S)
    await end.channel.open(one)
    return end, other


def frames_of(data: bytes) -> list[list[Any]]:
    """Return the messages of each frame, as plain lists."""
    frames = []
    while data:
        (length,) = struct.unpack_from(">I", data)
        frames.append(msgspec.msgpack.decode(data[4 : 4 + length]))
        data = data[4 + length :]
    return frames


def frame(messages: object) -> bytes:
    """Return a frame of the messages."""
    content = msgspec.msgpack.encode(messages)
    return struct.pack(">I", len(content)) + content


async def read_all(sock: socket.socket) -> bytes:
    """Return all bytes until the peer closes its end."""
    chunks = []
    while chunk := await asyncio.to_thread(sock.recv, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def in_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of an async function: it runs in asyncio's loop and in uvloop's, and must end."""

    def in_loop(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        run(bounded(test()))

    in_loop.__name__ = test.__name__
    marked: Callable[..., None] = _LOOPS(in_loop)
    return marked


async def bounded(test: Coroutine[Any, Any, None]) -> None:
    """Fail a test that hangs."""
    async with asyncio.timeout(2 * HANGS_AFTER_S):
        await test
