"""Receive the rest of a body into memory of its own: the kernel writes it where it is used."""

import asyncio
from collections.abc import Callable

from app.http.listener.parsing import HeldCycle, ParsingProtocol

_SCRATCH_BYTES = 64 * 1024


class BodyReceiver(asyncio.BufferedProtocol):
    """Stands for the protocol of a connection until the end of one body, whose length is known."""

    def __init__(
        self, protocol: ParsingProtocol, cycle: HeldCycle, buffer: memoryview, try_grow: Callable[[int], bool]
    ) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._buffer = buffer
        self._left_bytes = len(buffer)
        self._try_grow = try_grow
        self._scratch: memoryview | None = None

    def start(self) -> None:
        """Receive from now on."""
        self._cycle.flow.read_paused = False
        self._hand_over(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._cycle.response_complete:
            return self._buffer[-self._left_bytes :]
        # The request was answered before its end, and its memory may have another use.
        if self._scratch is None:
            self._buffer = memoryview(b"")
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        return self._scratch[: self._left_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        protocol, cycle = self._protocol, self._cycle
        self._left_bytes -= nbytes
        cycle.received_bytes += nbytes
        if not self._left_bytes:
            # The event loop keeps this object until the next long body, or the end of the connection.
            self._buffer = memoryview(b"")
            self._hand_over(protocol)
            protocol.end_body()
            return
        if not cycle.response_complete and not self._try_grow(nbytes):
            cycle.flow.pause_reading()
            cycle.message_event.set()
        protocol.watch_parts()

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def _hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        transport = self._protocol.transport
        # How to read is decided when reading starts.
        transport.pause_reading()
        transport.set_protocol(protocol)
        transport.resume_reading()
