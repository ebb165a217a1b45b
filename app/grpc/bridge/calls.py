"""Answer calls: a thread of grpcio waits while the call's handler runs on the event loop."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Never, TypeVar

import grpc
import structlog

from app.auth.principal import ANONYMOUS, Principal
from app.grpc.bridge.arrivals import Arrivals
from app.grpc.bridge.loop_bridge import LoopBridge
from app.grpc.bridge.threads import CallThreads
from app.grpc.call import GrpcError, Header, Stream, Unary, headers_of
from app.observability.traces.traces import KeyCheck
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES, ByteHold

log = structlog.get_logger(__name__)

# grpcio reports a deadline in the far future for a call without one.
_NO_DEADLINE_S = 10 * 365 * 86_400.0
# Responses that the client has not read; above it the handler waits. A single response may be larger.
_MAX_UNSENT_BYTES = 65_536
# Charged for each message beside its bytes, so that empty messages count.
_MESSAGE_OVERHEAD_BYTES = 128

Handler = TypeVar("Handler")


class ReceivedCall:
    """Implement Call of app/grpc/call.py with grpcio's context."""

    __slots__ = ("_context", "checked", "principal")

    def __init__(self, context: grpc.ServicerContext, principal: Principal, checked: KeyCheck | None = None) -> None:
        self._context = context
        self.principal = principal
        self.checked = checked

    @property
    def left_s(self) -> float | None:
        left_s = self._context.time_remaining()
        return left_s if left_s < _NO_DEADLINE_S else None

    @property
    def headers(self) -> list[Header]:
        return headers_of(self._context.invocation_metadata())

    @property
    def peer(self) -> str:
        """The client's address in grpcio's form: `ipv4:127.0.0.1:40000`."""
        return self._context.peer()


class _Method(Generic[Handler]):
    """One method of a service, with the parts of the server that its calls share."""

    def __init__(self, path: str, handler: Handler, bridge: LoopBridge, threads: CallThreads) -> None:
        """`path`: `/package.Service/Method`."""
        self.path = path
        self.handler = handler
        self.bridge = bridge
        self.threads = threads


class UnaryMethod(_Method[Unary]):
    """A method with one request and one response."""

    def __init__(self, path: str, handler: Unary, bridge: LoopBridge, threads: CallThreads, arrivals: Arrivals) -> None:
        super().__init__(path, handler, bridge, threads)
        self._arrivals = arrivals

    def answer(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        principal: Principal = ANONYMOUS,
        checked: KeyCheck | None = None,
    ) -> bytes:
        """Return the response. Runs in the call's thread.

        For grpcio the client sends a stream: it hands over a stream's iterator before the first request has arrived.
        """
        request = self._arrivals.receive(requests, context)
        if request is None:
            if context.is_active():
                _abort(GrpcError("UNIMPLEMENTED", "expected one request, got none"), context)
            return b""
        state = _UnaryState(self, request, ReceivedCall(context, principal, checked))
        # grpcio refuses the callback if the client has disconnected already.
        if not context.add_callback(state.on_end):
            return b""
        self.bridge.call_soon(state.start)
        state.changed.acquire()
        if state.error is not None:
            _abort(state.error, context)
        return state.response


class StreamMethod(_Method[Stream]):
    """A method in which either side may send any number of messages."""

    def answer(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        principal: Principal = ANONYMOUS,
        checked: KeyCheck | None = None,
    ) -> Iterator[bytes]:
        """Yield the responses; grpcio asks for the next one when the client can take it. Runs in the call's thread."""
        state = _StreamState(self, requests, ReceivedCall(context, principal, checked))
        # grpcio refuses the callback if the client has disconnected already.
        if context.add_callback(state.on_end):
            self.bridge.call_soon(state.start)
            yield from state.responses(context)


class _CallState(ABC):
    """One call: shared by its handler's task on the loop, the call's thread and grpcio's own thread."""

    __slots__ = ("_call", "_has_ended", "_is_done", "_method", "_task", "_unsent_bytes", "changed", "error")

    _method: UnaryMethod | StreamMethod

    def __init__(self, call: ReceivedCall) -> None:
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self._is_done = False
        self._has_ended = False
        # Of the responses; None while none was large enough to be counted.
        self._unsent_bytes: ByteHold | None = None
        self.error: GrpcError | None = None
        # The call's thread acquires it again to wait; the loop releases it when the thread has something to do.
        self.changed = threading.Lock()
        self.changed.acquire()

    def start(self) -> None:
        """Start the handler. Runs on the loop."""
        self._task = self._method.bridge.start(self._handle(), self._on_done)

    @abstractmethod
    async def _handle(self) -> None:
        """Run the handler and keep its responses for the call's thread."""

    def _on_done(self, task: asyncio.Task[None]) -> None:
        method = self._method
        self.error = _error_of(task, method.path)
        # The task and the error keep a traceback, which refers to this state. A circle of them would keep the call's
        # place on its connection until garbage is collected.
        self._task = None
        method.bridge.finish(task)
        self._is_done = True
        method.bridge.wake_soon(self.changed)

    def on_end(self) -> None:
        """Cancel the handler if it still runs. grpcio calls this in its thread at the end of every call, when the
        response is sent or dropped.
        """
        self._has_ended = True
        if self._unsent_bytes is not None:
            self._unsent_bytes.release()
        if not self._is_done:
            self._method.bridge.call_soon(self._cancel)

    def _count(self, response: bytes) -> None:
        """Count a response until `_discount` or the end of the call. Runs on the loop."""
        if len(response) <= UNCOUNTED_BYTES:
            return
        if self._unsent_bytes is None:
            self._unsent_bytes = self._method.bridge.byte_limit_of(self._call.principal.tenant).hold()
        self._unsent_bytes.add(len(response))
        if self._has_ended:
            # The call may have ended before the count was there to be released.
            self._unsent_bytes.release()

    def _discount(self, response: bytes) -> None:
        if len(response) > UNCOUNTED_BYTES and self._unsent_bytes is not None:
            self._unsent_bytes.add(-len(response))

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _UnaryState(_CallState):
    __slots__ = ("_request", "response")

    _method: UnaryMethod

    def __init__(self, method: UnaryMethod, request: bytes, call: ReceivedCall) -> None:
        super().__init__(call)
        self._method = method
        self._request = request
        self.response = b""

    async def _handle(self) -> None:
        self.response = await self._method.handler(self._request, self._call)
        self._count(self.response)


class _StreamState(_CallState):
    __slots__ = ("_bytes_queued", "_bytes_sent", "_has_space", "_is_waiting", "_requests", "_unsent")

    _method: StreamMethod

    def __init__(self, method: StreamMethod, requests: Iterator[bytes], call: ReceivedCall) -> None:
        super().__init__(call)
        self._method = method
        self._requests = StreamRequests(requests, method.bridge, method.threads)
        self._unsent: deque[bytes] = deque()
        # Only the loop changes `_bytes_queued`, only the call's thread `_bytes_sent`.
        self._bytes_queued = 0
        self._bytes_sent = 0
        self._has_space = asyncio.Event()
        self._is_waiting = False

    def responses(self, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the handler's responses until it ends. Runs in the call's thread."""
        while True:
            # Read first: once the handler has ended, nothing is added to `_unsent`.
            is_done = self._is_done
            while self._unsent:
                response = self._unsent.popleft()
                self._bytes_sent += len(response) + _MESSAGE_OVERHEAD_BYTES
                if self._is_waiting:
                    self._method.bridge.call_soon(self._has_space.set)
                yield response
                self._discount(response)
            if is_done:
                break
            self.changed.acquire()
        if self.error is not None:
            _abort(self.error, context)

    async def _handle(self) -> None:
        responses = self._method.handler(self._requests, self._call)
        try:
            async for response in responses:
                self._count(response)
                self._unsent.append(response)
                self._bytes_queued += len(response) + _MESSAGE_OVERHEAD_BYTES
                self._method.bridge.wake_soon(self.changed)
                if self._is_full:
                    await self._wait_for_space()
        finally:
            await _close(responses)

    @property
    def _is_full(self) -> bool:
        return self._bytes_queued - self._bytes_sent > _MAX_UNSENT_BYTES

    async def _wait_for_space(self) -> None:
        # Set before the size is read: either the thread sees the flag, or this loop sees the bytes that were sent.
        self._is_waiting = True
        while self._is_full:
            self._has_space.clear()
            if self._is_full:
                await self._has_space.wait()
        self._is_waiting = False


class StreamRequests:
    """Iterate a stream's requests on the event loop.

    Each request is read when the handler asks for it and not ahead, so that the client waits for the handler. A
    handler that stops waiting, for example after a timeout, receives the same request at its next attempt. If the
    client disconnects, the iteration may end shortly before the handler is cancelled: grpcio orders the two events
    either way.
    """

    def __init__(self, requests: Iterator[bytes], bridge: LoopBridge, threads: CallThreads) -> None:
        """`requests`: grpcio's blocking iterator."""
        self._requests = requests
        self._bridge = bridge
        self._threads = threads
        self._reading: asyncio.Future[bytes | None] | None = None

    def __aiter__(self) -> "StreamRequests":
        return self

    async def __anext__(self) -> bytes:
        """Raises GrpcError if the process cannot start a thread that reads."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_future()
            if not self._threads.try_run(self._read):
                self._reading = None
                raise GrpcError("RESOURCE_EXHAUSTED", "the server has no thread left to read the stream's requests")
        request = await asyncio.shield(self._reading)
        if request is None:
            # `_reading` keeps None, so that every later attempt ends the iteration too.
            raise StopAsyncIteration
        self._reading = None
        return request

    def _read(self) -> None:
        """Read one request. Runs in a thread."""
        try:
            request = next(self._requests, None)
        except grpc.RpcError:
            # The client has disconnected; the handler will be cancelled.
            return
        self._bridge.call_soon(lambda: self._receive(request))

    def _receive(self, request: bytes | None) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(request)


def _error_of(task: asyncio.Task[Any], path: str) -> GrpcError | None:
    """Return the error that ends the call of a finished handler, None after a success."""
    if task.cancelled():
        return GrpcError("CANCELLED", "the call was cancelled")
    error = task.exception()
    if isinstance(error, GrpcError):
        return error.with_traceback(None)
    if error is None:
        return None
    log.error("gRPC handler failed", path=path, exc_info=error)
    return GrpcError("INTERNAL", "internal error; see the server's log")


def _abort(error: GrpcError, context: grpc.ServicerContext) -> Never:
    """End the call with an error. Runs in the call's thread."""
    context.abort(grpc.StatusCode[error.code], error.message)


async def _close(responses: AsyncIterator[bytes]) -> None:
    close = getattr(responses, "aclose", None)
    if close is not None:
        await close()
