"""The requests of a stream, as its handler iterates them on the event loop."""

import asyncio
from collections.abc import Iterator

import grpc

from app.grpc.bridge.call_threads import CallThreads
from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.call import GrpcError


class Requests:
    """One is read when it is asked for, none ahead: the client waits for the handler.

    Who stops waiting for one, by a timeout for example, finds it at the next time of asking. Where the client is gone
    they may end a moment before the handler is cancelled: grpcio tells the two ends in no order.
    """

    def __init__(self, requests: Iterator[bytes], crossing: LoopBridge, threads: CallThreads) -> None:
        """`requests`: grpcio's, which blocks."""
        self._requests = requests
        self._crossing = crossing
        self._threads = threads
        self._reading: asyncio.Future[bytes | None] | None = None

    def __aiter__(self) -> "Requests":
        return self

    async def __anext__(self) -> bytes:
        """Raises GrpcError if the process can have no thread that reads."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_future()
            if not self._threads.try_run(self._read):
                self._reading = None
                raise GrpcError("RESOURCE_EXHAUSTED", "the server has no thread left to read the stream's requests")
        request = await asyncio.shield(self._reading)
        if request is None:
            # Stays: there is none after the end either.
            raise StopAsyncIteration
        self._reading = None
        return request

    def _read(self) -> None:
        """In a thread."""
        try:
            request = next(self._requests, None)
        except grpc.RpcError:
            # The client is gone, and the handler is about to be cancelled.
            return
        self._crossing.to_loop(lambda: self._received(request))

    def _received(self, request: bytes | None) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(request)
