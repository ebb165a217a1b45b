"""Answer the messages of the server in an engine process: load the model, run the requests, report the counts."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from frameworks.engine.local import LocalEngine, start_local_engine
from frameworks.engine.process.hosted_calls import HostedCall, HostedGeneration, Sender
from frameworks.engine.process.messages import (
    Begun,
    Cancel,
    Close,
    Closed,
    EndRequests,
    Failed,
    Free,
    FromEngine,
    Generate,
    Infer,
    Load,
    Loaded,
    LoadFailed,
    Measure,
    MessageTooLarge,
    Needs,
    Ping,
    Pong,
    Proceed,
    ProtocolError,
    SpecLearned,
    ToEngine,
)
from frameworks.engine.process.model_source import HostedModel, ModelSource
from frameworks.engine.process.plain import PlainTenant, error_to_plain, request_from_plain, tenant_from_plain
from frameworks.engine.process.run_growth import RunGrowth
from frameworks.engine.process.specs import spec_to_plain
from frameworks.engine.threads import EngineThreads
from frameworks.errors import InvalidInput, ModelFailed, RoundhouseError
from frameworks.generation.types import GenerateRequest
from frameworks.scheduling.admission import RequestLimit
from frameworks.tenants import Tenant
from frameworks.types import ModelSpec, TensorBatch, TokenBatch

log = structlog.get_logger(__name__)

COUNTS_S = 0.05
"""The interval of counts while requests run."""


class EngineHost:
    """Runs one model for the messages of one channel. Owned by the event loop."""

    def __init__(
        self,
        sender: Sender,
        source: ModelSource,
        freed: Callable[[Free], None],
        tidy: Callable[[], None],
        end: Callable[[int], None],
    ) -> None:
        """`freed`: called when the server has read blocks of the answer arena. `tidy`: called when no request is left.
        `end`: called with the exit status when the process has to end.
        """
        self._sender = sender
        self._source = source
        self._tidy = tidy
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._threads = EngineThreads()
        self._limit = RequestLimit("the engine process", None, None)
        self._growth = RunGrowth()
        self._counted_s = 0.0
        self._engine: LocalEngine | None = None
        self._sent_spec: ModelSpec | None = None
        self._calls: dict[int, HostedCall] = {}
        self._tenants: dict[PlainTenant, Tenant] = {}
        self._begun: list[HostedCall] = []
        self._begun_s = 0.0
        self._tick: asyncio.TimerHandle | None = None
        # A load, or the close.
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._handlers: dict[type[ToEngine], Callable[[Any], None]] = {
            Infer: self._infer,
            Generate: self._generate,
            Cancel: self._cancel,
            Proceed: self._proceed,
            Free: freed,
            Ping: self._answer_ping,
            Measure: self._measure,
            Load: self._load,
            EndRequests: self._end_requests,
            Close: self._close,
        }

    def received(self, messages: Sequence[ToEngine]) -> None:
        """Process the messages of one frame, in order. Raises ProtocolError for one that is damaged."""
        for message in messages:
            handle = self._handlers.get(type(message))
            if handle is None:
                raise ProtocolError(f"expected an order, got {type(message).__name__}")
            handle(message)

    def abort(self) -> None:
        """End everything without an answer: the server is gone."""
        if self._tick is not None:
            self._tick.cancel()
        if self._task is not None:
            self._task.cancel()
        for number in list(self._calls):
            self._cancel(Cancel(number))
        if self._engine is not None:
            self._engine.abort("the server has ended")
        self._threads.close()

    def _measure(self, message: Measure) -> None:
        self._start_task(self._reply_from_thread(self._source.measure, message, Needs))

    def _load(self, message: Load) -> None:
        if self._engine is not None:
            raise ProtocolError("expected one load, got another one")
        self._start_task(self._reply_from_thread(self._source.load, message.device, partial(self._start, message)))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._task = self._loop.create_task(work)

    async def _reply_from_thread(
        self, work: Callable[[Any], Any], argument: object, reply: Callable[[Any], FromEngine]
    ) -> None:
        """Send the reply made of the result of `work(argument)`, or its error."""
        # The thread ends with the load, and with it the OpenMP threads of the load, see Loader.
        thread = ThreadPoolExecutor(1, thread_name_prefix="load")
        try:
            message = reply(await self._loop.run_in_executor(thread, work, argument))
        except Exception as error:
            if not isinstance(error, RoundhouseError):
                log.exception("model failed to load")
            message = LoadFailed(error_to_plain(error))
        finally:
            thread.shutdown(wait=False)
        self._sender.send(message)

    def _start(self, message: Load, hosted: HostedModel) -> Loaded:
        engine = start_local_engine(message.engine, hosted.instances, self._growth.counts, hosted.device, self._threads)
        self._engine, self._sent_spec = engine, engine.model.spec
        return Loaded(spec_to_plain(engine.model.spec), hosted.memory_bytes, hosted.load_s, hosted.warm_up_s)

    def _infer(self, message: Infer) -> None:
        engine, tenant = self._engine_for(message.id), self._tenant(message.tenant)
        request = request_from_plain(message.request)
        if isinstance(request, GenerateRequest):
            raise ProtocolError("expected a request with one answer, got one for generated text")
        call = HostedCall(message, self._note_begun)
        self._calls[message.id] = call
        try:
            if isinstance(request, TensorBatch | TokenBatch):
                # Without a task: it would take as long as all else of a small request.
                self._await(call, engine.submit(request, message.priority, call.begin, call.timings, tenant))
            else:
                run = call.run_of(message, tenant, self._limit, self._sender)
                self._await(call, asyncio.ensure_future(engine.answer(run, request)))
        except Exception as error:  # noqa: BLE001 - sent to the caller
            self._fail(call, error)

    def _generate(self, message: Generate) -> None:
        engine, tenant = self._engine_for(message.id), self._tenant(message.tenant)
        request = request_from_plain(message.request)
        if not isinstance(request, GenerateRequest):
            raise ProtocolError("expected a request for generated text, got another one")
        call = HostedGeneration(message, self._note_begun, self._sender)
        self._calls[message.id] = call
        run = call.run_of(message, tenant, self._limit, self._sender)
        self._await(call, self._loop.create_task(call.run(engine, run, request)))

    def _engine_for(self, number: int) -> LocalEngine:
        """Return the engine of a new request."""
        if self._engine is None:
            raise ProtocolError("expected a loaded model before the first request, got none")
        if number in self._calls:
            raise ProtocolError(f"expected a new request, got the number {number} again")
        return self._engine

    def _tenant(self, plain: PlainTenant) -> Tenant:
        """Return the object of a tenant; the scheduler compares objects."""
        tenant = self._tenants.get(plain)
        if tenant is None:
            tenant = self._tenants[plain] = tenant_from_plain(plain)
        return tenant

    def _await(self, call: HostedCall, future: "asyncio.Future[Any]") -> None:
        call.future = future
        future.add_done_callback(partial(self._complete, call))
        if self._tick is None:
            self._tick = self._loop.call_later(COUNTS_S, self._report)

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
        """Forget a request. The counts with it are sent before its answer if no other request runs."""
        del self._calls[call.id]
        if not self._calls or self._loop.time() - self._counted_s >= COUNTS_S:
            self._send_counts()

    def _cancel(self, message: Cancel) -> None:
        # Its answer may have been sent meanwhile.
        call = self._calls.pop(message.id, None)
        if call is not None and call.future is not None:
            call.future.cancel()

    def _proceed(self, message: Proceed) -> None:
        call = self._calls.get(message.id)
        if call is not None and call.budget is not None:
            call.budget.proceed()

    def _answer_ping(self, message: Ping) -> None:
        since_s = None if self._engine is None else self._engine.running_since_s
        self._sender.send(Pong(message.number, 0.0 if since_s is None else max(0.0, time.perf_counter() - since_s)))

    def _end_requests(self, message: EndRequests) -> None:
        if self._engine is not None:
            self._engine.end_requests()

    def _close(self, message: Close) -> None:
        self._is_closing = True
        self._start_task(self._close_engine())

    async def _close_engine(self) -> None:
        if self._engine is not None:
            await self._engine.close()
        self._sender.send(Closed())
        self._end(0)

    def _note_begun(self, call: HostedCall) -> None:
        """Report a request that begins to run after this round and the next one: its answer may be sent by then."""
        if not self._begun:
            self._begun_s = time.perf_counter()
            self._loop.call_soon(self._loop.call_soon, self._send_begun)
        self._begun.append(call)

    def _send_begun(self) -> None:
        begun, self._begun = self._begun, []
        running = [call for call in begun if self._calls.get(call.id) is call]
        numbers = []
        for call in running:
            if isinstance(call, HostedGeneration):
                call.send_begun()
            else:
                numbers.append(call.id)
        if numbers:
            self._sender.send(Begun(numbers, self._begun_s))

    def _report(self) -> None:
        """Send the counts at intervals until the engine is idle."""
        self._send_counts()
        engine = self._engine
        assert engine is not None
        self._tick = None
        if self._calls or engine.is_running:
            self._tick = self._loop.call_later(COUNTS_S, self._report)
        else:
            self._tidy()
        if engine.is_dead and not self._is_closing:
            log.error("engine process ends, as its model has ended")
            self._end(1)

    def _send_counts(self) -> None:
        """Send what has grown since the last message."""
        self._counted_s = self._loop.time()
        assert self._engine is not None
        counts = self._growth.take(self._engine.stats)
        if counts is not None:
            self._sender.send(counts)
        spec = self._engine.model.spec
        if spec is not self._sent_spec:
            self._sent_spec = spec
            self._sender.send(SpecLearned(spec_to_plain(spec)))
