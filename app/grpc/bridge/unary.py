"""Calls of one request and one response."""

import asyncio
import threading
from typing import Any

import grpc

from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.bridge.open_calls import OpenCalls
from app.grpc.bridge.received_call import ReceivedCall, end_with, error_of
from app.grpc.call import GrpcError, Unary


class UnaryCalls:
    """Those of one method."""

    def __init__(self, path: str, handler: Unary, crossing: LoopBridge, open_calls: OpenCalls) -> None:
        self.path = path
        self.handler = handler
        self.crossing = crossing
        self.open_calls = open_calls

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """In the call's thread."""
        visit = _CallState(self, request, context)
        # Cannot be added where the client is gone already.
        if not context.add_callback(visit.on_end):
            return b""
        self.crossing.to_loop(visit.begin)
        visit.answered.acquire()
        if visit.error is not None:
            end_with(visit.error, context)
        return visit.response


class _CallState:
    """One call on the event loop, seen by the thread that waits for it and by grpcio's own."""

    __slots__ = ("_call", "_calls", "_is_over", "_request", "_task", "answered", "error", "response")

    def __init__(self, calls: UnaryCalls, request: bytes, context: grpc.ServicerContext) -> None:
        self._calls = calls
        self._request = request
        self._call = ReceivedCall(context)
        self._task: asyncio.Task[bytes] | None = None
        self._is_over = False
        self.answered = threading.Lock()
        self.answered.acquire()
        self.response = b""
        self.error: GrpcError | None = None

    def begin(self) -> None:
        """On the loop."""
        self._task = self._calls.open_calls.begin(self._handle(), self._done)

    async def _handle(self) -> bytes:
        return await self._calls.handler(self._request, self._call)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.error = error_of(task, self._calls.path)
        if self.error is None:
            self.response = task.result()
        self._calls.open_calls.end(task)
        self._is_over = True
        self._calls.crossing.wake(self.answered)

    def on_end(self) -> None:
        """In grpcio's thread at the end of each call: where no answer was sent, the client or its patience is gone."""
        if not self._is_over:
            self._calls.crossing.to_loop(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
