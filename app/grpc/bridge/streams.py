"""Calls in which either side may send more than one message."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from app.grpc.bridge.call_threads import CallThreads
from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.bridge.open_calls import OpenCalls
from app.grpc.bridge.received_call import ReceivedCall, end_with, error_of
from app.grpc.bridge.requests import Requests
from app.grpc.call import GrpcError, Stream

# Of responses that the client has not taken yet: then the handler waits. One alone may be larger.
_MOST_UNSENT_BYTES = 65_536
# What a message takes beside its bytes, so that empty ones count.
_MESSAGE_BYTES = 128


class StreamCalls:
    """Those of one method."""

    def __init__(
        self, path: str, handler: Stream, crossing: LoopBridge, open_calls: OpenCalls, threads: CallThreads
    ) -> None:
        self.path = path
        self.handler = handler
        self.crossing = crossing
        self.open_calls = open_calls
        self.threads = threads

    def answer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """In the call's thread, which sends what this gives, each when the client has room for it."""
        visit = _CallState(self, requests, context)
        # Cannot be added where the client is gone already.
        if context.add_callback(visit.on_end):
            self.crossing.to_loop(visit.begin)
            yield from visit.responses(context)


class _CallState:
    """One call on the event loop, seen by the thread that sends its responses and by grpcio's own."""

    def __init__(self, calls: StreamCalls, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        self._calls = calls
        self._call = ReceivedCall(context)
        self._requests = Requests(requests, calls.crossing, calls.threads)
        self._task: asyncio.Task[None] | None = None
        self._unsent: deque[bytes] = deque()
        self._news = threading.Lock()
        self._news.acquire()
        self._room = asyncio.Event()
        # Each of the two is counted by one side only: the loop and the thread.
        self._bytes_put = 0
        self._bytes_taken = 0
        self._wants_room = False
        self._is_over = False
        self._error: GrpcError | None = None

    def responses(self, context: grpc.ServicerContext) -> Iterator[bytes]:
        """In the call's thread: what the handler gives, until its end."""
        while True:
            # Before the look at what is unsent: nothing is added after it.
            is_over = self._is_over
            while self._unsent:
                response = self._unsent.popleft()
                self._bytes_taken += len(response) + _MESSAGE_BYTES
                if self._wants_room:
                    self._calls.crossing.to_loop(self._room.set)
                yield response
            if is_over:
                break
            self._news.acquire()
        if self._error is not None:
            end_with(self._error, context)

    def begin(self) -> None:
        """On the loop."""
        self._task = self._calls.open_calls.begin(self._handle(), self._done)

    async def _handle(self) -> None:
        responses = self._calls.handler(self._requests, self._call)
        try:
            async for response in responses:
                self._unsent.append(response)
                self._bytes_put += len(response) + _MESSAGE_BYTES
                self._calls.crossing.wake(self._news)
                if self._is_full:
                    await self._wait_for_room()
        finally:
            await _close(responses)

    @property
    def _is_full(self) -> bool:
        return self._bytes_put - self._bytes_taken > _MOST_UNSENT_BYTES

    async def _wait_for_room(self) -> None:
        # Either the thread sees that room is wanted, or this sees what the thread has taken before.
        self._wants_room = True
        while self._is_full:
            self._room.clear()
            if self._is_full:
                await self._room.wait()
        self._wants_room = False

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._error = error_of(task, self._calls.path)
        self._calls.open_calls.end(task)
        self._is_over = True
        self._calls.crossing.wake(self._news)

    def on_end(self) -> None:
        """In grpcio's thread at the end of each call: where the handler still runs, nobody wants its answer."""
        if not self._is_over:
            self._calls.crossing.to_loop(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _close(responses: AsyncIterator[bytes]) -> None:
    close = getattr(responses, "aclose", None)
    if close is not None:
        await close()
