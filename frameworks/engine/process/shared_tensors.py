"""Place large arrays in memory that the peer shares, and read those of the peer."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from frameworks.engine.process.arrays import Reference
from frameworks.engine.process.messages import Free, ProtocolError
from frameworks.types import Array
from memory.shared_arena import ArenaError, SharedArena


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
        self._unused: deque[int] = deque()
        self._is_flush_due = False

    @property
    def num_in_use(self) -> int:
        """Number of blocks of either side that are not read to the end, and of reads whose end was not sent."""
        stats = self._read.stats()
        return self._written.stats().leases + stats.reads + len(self._unused)

    def place(self, array: Array) -> Reference | None:
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
