"""Answer the messages of one client of an engine process: run its requests, and report what they need."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from frameworks.core.channel.channel import Channel
from frameworks.core.channel.messages import MessageTooLarge, ProtocolError
from frameworks.core.errors import Draining, InvalidInput, ModelFailed, RoundhouseError
from frameworks.core.timings import RunTrace
from frameworks.engine.local import LocalEngine
from frameworks.engine.process.host.hosted_calls import HostedCall, HostedGeneration
from frameworks.engine.process.host.hosted_engine import COUNTS_S, HostedEngine
from frameworks.engine.process.wire.messages import (
    Begun,
    Cancel,
    Close,
    Closed,
    EndRequests,
    Failed,
    Free,
    Generate,
    Infer,
    Ping,
    Pong,
    Proceed,
    ToEngine,
    Waiting,
)
from frameworks.engine.process.wire.serialization import error_to_plain, request_from_plain
from frameworks.generation.types import GenerateRequest
from frameworks.types import TensorBatch, TokenBatch

log = structlog.get_logger(__name__)


class ClientSession:
    """Runs the requests of one channel in the engine that all clients share. Owned by the event loop."""

    def __init__(
        self,
        host: HostedEngine,
        sender: Channel[ToEngine],
        freed: Callable[[Free], None],
        is_owner: bool,
        closed: Callable[[], None],
    ) -> None:
        """`freed`: called when the client has read blocks of the answer arena. `is_owner`: its orders are for the
        process. `closed`: called when a client that is not the owner has closed its session.
        """
        self._host = host
        self._sender = sender
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._client = host.add(sender)
        self._calls = self._client.calls
        self._begun: list[HostedCall] = []
        self._begun_s = 0.0
        self._closing: asyncio.Task[None] | None = None
        self._handlers: dict[type[ToEngine], Callable[[Any], None]] = {
            Infer: self._infer,
            Generate: self._generate,
            Cancel: self._cancel,
            Proceed: self._proceed,
            Free: freed,
            Ping: self._answer_ping,
            Waiting: self._note_waiting,
            EndRequests: self._end_requests,
            Close: self._close,
        }
        if is_owner:
            self._handlers |= host.orders

    def received(self, messages: Sequence[ToEngine]) -> None:
        """Process the messages of one frame, in order. Raises ProtocolError for one that is damaged."""
        for message in messages:
            handle = self._handlers.get(type(message))
            if handle is None:
                raise ProtocolError(f"expected an order, got {type(message).__name__}")
            handle(message)

    def abort(self) -> None:
        """End all requests without an answer: the client has disconnected."""
        if self._closing is not None:
            self._closing.cancel()
        for number in list(self._calls):
            self._cancel(Cancel(number))
        self._host.remove(self._client)

    def _infer(self, message: Infer) -> None:
        host = self._host
        engine, tenant = self._engine_for(message.id), host.tenant(message.tenant)
        request = request_from_plain(message.request)
        if isinstance(request, GenerateRequest):
            raise ProtocolError("expected a request with one answer, got one for generated text")
        call = HostedCall(message, self._note_begun)
        if message.span:
            call.timings.trace = RunTrace(message.span)
        self._calls[message.id] = call
        try:
            if isinstance(request, TensorBatch | TokenBatch):
                # Without a task: it would take as long as all else of a small request.
                self._await(call, engine.submit(request, message.priority, call.begin, call.timings, tenant))
            else:
                run = call.run_of(message, tenant, host.limit, self._sender)
                self._await(call, asyncio.ensure_future(engine.answer(run, request)))
        except Exception as error:  # noqa: BLE001 - sent to the caller
            self._fail(call, error)

    def _generate(self, message: Generate) -> None:
        host = self._host
        engine, tenant = self._engine_for(message.id), host.tenant(message.tenant)
        request = request_from_plain(message.request)
        if not isinstance(request, GenerateRequest):
            raise ProtocolError("expected a request for generated text, got another one")
        call = HostedGeneration(message, self._note_begun, self._sender)
        self._calls[message.id] = call
        run = call.run_of(message, tenant, host.limit, self._sender)
        self._await(call, self._loop.create_task(call.run(engine, run, request)))

    def _engine_for(self, number: int) -> LocalEngine:
        """Return the engine of a new request."""
        engine = self._host.engine
        if engine is None:
            raise ProtocolError("expected a loaded model before the first request, got none")
        if number in self._calls:
            raise ProtocolError(f"expected a new request, got the number {number} again")
        self._host.note_use()
        return engine

    def _await(self, call: HostedCall, future: "asyncio.Future[Any]") -> None:
        call.future = future
        future.add_done_callback(partial(self._complete, call))
        if self._host.tick is None:
            self._host.start_reports()

    def _complete(self, call: HostedCall, future: "asyncio.Future[Any]") -> None:
        """Send the answer or the error of a request that was not cancelled."""
        if self._calls.get(call.id) is not call:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            self._fail(call, ModelFailed("the request was cancelled within the model"))
            return
        error = future.exception()
        if error is not None:
            self._fail(call, error)
            return
        self._forget(call)
        try:
            self._sender.send(call.last_message(future.result()))
        except (MessageTooLarge, InvalidInput, TypeError) as failure:
            # The outputs of a model have any size, and sequences of them any type.
            self._sender.send(Failed(call.id, error_to_plain(failure)))

    def _fail(self, call: HostedCall, error: BaseException) -> None:
        if not isinstance(error, RoundhouseError):
            log.error("request failed", exc_info=error)
        self._forget(call)
        self._sender.send(Failed(call.id, error_to_plain(error)))

    def _forget(self, call: HostedCall) -> None:
        """Forget a request. The reporter gets the counts with its last one before the answer."""
        del self._calls[call.id]
        host = self._host
        host.num_done += 1
        if host.reporter is self._client and (not self._calls or self._loop.time() - host.counted_s >= COUNTS_S):
            host.send_counts()

    def _cancel(self, message: Cancel) -> None:
        # Its answer may have been sent meanwhile.
        call = self._calls.pop(message.id, None)
        if call is not None and call.future is not None:
            call.future.cancel()

    def _proceed(self, message: Proceed) -> None:
        call = self._calls.get(message.id)
        if call is not None and call.budget is not None:
            call.budget.proceed()

    def _note_waiting(self, message: Waiting) -> None:
        self._client.waiting = message.calls

    def _answer_ping(self, message: Ping) -> None:
        engine = self._host.engine
        since_s = None if engine is None else engine.running_since_s
        now_s = time.perf_counter()
        self._sender.send(Pong(message.number, 0.0 if since_s is None else max(0.0, now_s - since_s), now_s))

    def _end_requests(self, message: EndRequests) -> None:
        """Fail the requests of this client that wait or generate, and later ones; those in a batch are answered."""
        self._refuse_requests()
        for call in list(self._calls.values()):
            if isinstance(call, HostedGeneration) or not call.has_begun:
                self._cancel(Cancel(call.id))
                self._refuse(call)

    def _close(self, message: Close) -> None:
        self._refuse_requests()
        if self._closing is None:
            self._closing = self._loop.create_task(self._close_when_idle())

    def _refuse_requests(self) -> None:
        self._handlers[Infer] = self._handlers[Generate] = self._refuse

    def _refuse(self, request: Infer | Generate | HostedCall) -> None:
        self._sender.send(Failed(request.id, error_to_plain(Draining.unloaded(self._host.name))))

    async def _close_when_idle(self) -> None:
        while self._calls:
            await asyncio.wait([call.future for call in self._calls.values() if call.future is not None])
        self._closing = None
        self._sender.send(Closed())
        self._closed()

    def _note_begun(self, call: HostedCall) -> None:
        """Report a request that begins to run after this round and the next one: its answer may be sent by then."""
        if not self._begun:
            self._begun_s = time.perf_counter()
            self._loop.call_soon(self._loop.call_soon, self._send_begun)
        self._begun.append(call)

    def _send_begun(self) -> None:
        begun, self._begun = self._begun, []
        running = [call for call in begun if self._calls.get(call.id) is call]
        ids = []
        for call in running:
            if isinstance(call, HostedGeneration):
                call.send_begun()
            else:
                ids.append(call.id)
        if ids:
            self._sender.send(Begun(ids, self._begun_s))
