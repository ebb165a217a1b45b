"""Place large arrays in memory that the peer shares, and read those of the peer."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from frameworks.core.channel.arrays import Reference
from frameworks.core.channel.messages import ProtocolError
from frameworks.engine.process.wire.messages import Free
from frameworks.types import Array
from memory.buffers import ALIGNMENT_BYTES
from memory.shared_arena import ArenaError, Block, SharedArena


class SharedBody:
    """A leased block, until the last array on it is deleted. numpy's views keep a reference to it."""

    __slots__ = ("__array_interface__", "_block", "_on_unused", "arena")

    def __init__(self, arena: SharedArena, block: Block, on_unused: Callable[[int], None]) -> None:
        """`on_unused`: called once with the block's number, in any thread, also during a garbage collection."""
        self.arena = arena
        self._block = block
        self._on_unused = on_unused
        interface: dict[str, Any] = block.array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False), "version": 3}

    @property
    def array(self) -> Array:
        """Return uint8 [nbytes], writable."""
        return np.asarray(self)

    def place_of(self, array: Array) -> tuple[int, int]:
        """Return the number of the block and the offset in the arena of an array on it."""
        start: int = self.__array_interface__["data"][0]
        address: int = array.__array_interface__["data"][0]
        return self._block.number, self._block.offset + address - start

    def __del__(self) -> None:
        self._on_unused(self._block.number)


def body_under(array: Array) -> SharedBody | None:
    """Return the body that an array is a view of; None for another array."""
    base: object = array.base
    while base is not None and not isinstance(base, SharedBody):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base


# The part of an arena for bodies: slow clients must leave memory to the tensors of others.
_BODIES_SHARE = 0.5


class SharedTensors:
    """The two arenas of one side of a channel. Implements Placement. Owned by the event loop that creates it.

    Blocks of the peer whose last view was deleted are collected, in any thread; one message frees those of a round.
    """

    def __init__(self, written: SharedArena, read: SharedArena, send: Callable[[Free], None]) -> None:
        """`written`: for the arrays of this side. `send`: called in the event loop; `read` belongs to the peer."""
        self._written = written
        self._read = read
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._bodies: set[int] = set()
        """The blocks of bodies."""
        self._unused: deque[int] = deque()
        self._is_flush_due = False

    @property
    def num_in_use(self) -> int:
        """Number of blocks of either side that are not read to the end, and of reads whose end was not sent.

        Bodies do not count: a client may send one slowly, to a model without requests.
        """
        stats = self._read.stats()
        return self._written.stats().leases - len(self._bodies) + stats.reads + len(self._unused)

    def lease_body(self, nbytes: int) -> Array | None:
        """Return uint8 [nbytes], writable, for the body of a request; None where too little is free.

        `place` does not copy its views, where they are aligned. It is free with the last of them.
        """
        block = self._written.lease(nbytes, int(_BODIES_SHARE * self._written.max_bytes))
        if block is None:
            return None
        self._bodies.add(block.number)
        return SharedBody(self._written, block, self._end_body).array

    def place(self, array: Array) -> Reference | None:
        body = body_under(array)
        if body is not None and body.arena is self._written and array.flags.c_contiguous:
            number, offset = body.place_of(array)
            # The process frees each of its references, and the body may have several tensors, or be sent again.
            shared = None if offset % ALIGNMENT_BYTES else self._written.share(number)
            if shared is not None:
                return shared, offset, array.nbytes
        block = self._written.lease(array.nbytes)
        if block is None:
            return None
        np.copyto(block.array.view(array.dtype).reshape(array.shape), array)
        return block.number, block.offset, array.nbytes

    def take_back(self, block: int) -> None:
        self._written.free(block)

    def find(self, block: int, offset: int, nbytes: int) -> Array:
        """Return the bytes of a reference of the peer, read-only. Raises ProtocolError for one outside of its arena."""
        try:
            return self._read.read(block, offset, nbytes, self._note_unused)
        except ArenaError as error:
            raise ProtocolError(str(error)) from None

    def freed(self, message: Free) -> None:
        """Free the blocks that the peer has read. Raises ProtocolError for one that is not leased."""
        try:
            for block in message.blocks:
                self._written.free(block)
        except ArenaError as error:
            raise ProtocolError(str(error)) from None

    def trim(self) -> None:
        """Return pages of the last burst to the system. Call it at intervals, also while nothing is sent."""
        self._written.trim()

    def close(self) -> None:
        """Close the arenas. Arrays that are in use keep their memory."""
        self._written.close()
        self._read.close()

    def _end_body(self, block: int) -> None:
        self._written.free(block)
        self._bodies.discard(block)

    def _note_unused(self, block: int) -> None:
        """Collect a block. It runs in any thread, also within a garbage collection."""
        self._unused.append(block)
        if self._is_flush_due:
            return
        self._is_flush_due = True
        # After the end of the loop nothing is sent.
        with suppress(RuntimeError):
            if threading.get_ident() == self._thread_id:
                self._loop.call_soon(self._flush)
            else:
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        # First: a block that is added meanwhile is either sent here or calls again.
        self._is_flush_due = False
        blocks: list[int] = []
        while self._unused:
            blocks.append(self._unused.popleft())
        if blocks:
            self._send(Free(blocks))
