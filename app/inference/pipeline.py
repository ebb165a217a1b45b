"""The path of one request, for every protocol: decode, wait for a load, infer or generate, encode."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from app.auth.principal import Principal
from app.auth.quotas import LimitedPermit
from app.inference.bounds import Bounds
from app.inference.context import RequestContext
from app.inference.decoded_size import answer_bytes, decoded_bytes
from app.inference.lifecycle import Lifecycle
from app.inference.model_view import ModelView
from app.inference.service import InferenceService
from app.inference.shadowing import ShadowTraffic
from app.inference.unnamed_model import UnnamedModel
from app.observability.metrics import Observer, RequestRecord
from frameworks.core.errors import DeadlineExceeded
from frameworks.core.tenants import Tenant
from frameworks.core.timings import RunTrace
from frameworks.generation.types import GenerateAnswer, GenerateRequest, Generation
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.version import VersionNotLoaded
from frameworks.scheduling.admission import Permit
from frameworks.types import ModelSpec

FindSpec = Callable[[str | UnnamedModel, str | None, Callable[[], float | None]], ModelSpec]
"""RequestContext.find_spec: model, version (None: the request names none) and how to read the request's `timeout_ms`.

The timeout is read only if the version has to be loaded first: the request waits no longer than that.
"""


def no_timeout_ms() -> None:
    """The `read_timeout_ms` of a request that names no timeout."""


Result = TypeVar("Result")


class DecodedRequest(Protocol):
    """A request for one model, decoded by the `spec` of one of its versions. `stream`: the response comes in pieces.

    `spec` None: an operation answers the request, with runs of models or without. `timeout_ms` None: the request names
    no deadline.
    """

    @property
    def request(self) -> Any: ...

    @property
    def spec(self) -> ModelSpec | None: ...

    @property
    def priority(self) -> int: ...

    @property
    def timeout_ms(self) -> float | None: ...

    @property
    def stream(self) -> bool: ...


class Operation(Protocol):
    """Answer the requests of one class that are for no model of their own, such as a search."""

    async def __call__(self, context: RequestContext, request: Any) -> Any:
        """Return the answer, which the exchange encodes. Cancelled at the deadline, or if the client disconnects."""
        ...


class TextStream(Protocol):
    """A response that is sent while it is generated."""

    async def send_pieces(self, generation: Generation) -> None:
        """Send all pieces. Raises what fails before the first one, which an ordinary response can still report."""
        ...

    async def finish(self) -> None:
        """Send the end of the response, after the model's part is done."""
        ...


class Exchange(Protocol):
    """One request as its transport sees it: how it is decoded, how its response is encoded, whether it is cancelled.

    `is_long_to_decode`: decoding would block the event loop for about a millisecond. `keeps_body`: `drop_body` keeps
    the bytes that the request was decoded from.
    """

    @property
    def keeps_body(self) -> bool: ...

    @property
    def is_long_to_decode(self) -> bool: ...

    def decode(self, find_spec: FindSpec) -> DecodedRequest:
        """Decode the request. Any thread may call it. Raises InvalidInput and what `find_spec` raises."""
        ...

    def drop_body(self) -> None:
        """Release the bytes that the request was decoded from: they may be large, and the request may wait long."""
        ...

    def is_long_to_encode(self, decoded: Any, answer: Any) -> bool:
        """Whether `encode` would block the event loop for about a millisecond."""
        ...

    def encode(self, decoded: Any, answer: Any) -> Any:
        """Encode the response. Any thread may call it."""
        ...

    def open_stream(self, decoded: Any) -> TextStream | None:
        """Return a stream if the response is sent in pieces."""
        ...

    def watch(self) -> None:
        """From now on a client that disconnects cancels the current task."""
        ...

    def unwatch(self) -> Awaitable[None] | None:
        """End `watch`. Awaiting the result raises ClientGone if the client has disconnected; None: it has not."""
        ...


class Pipeline:
    """Owned by the event loop."""

    def __init__(
        self,
        models: ServedModels,
        service: InferenceService,
        shadowing: ShadowTraffic,
        observer: Observer,
        lifecycle: Lifecycle,
        bounds: Bounds,
    ) -> None:
        self._models = models
        self.observer = observer
        self.lifecycle = lifecycle
        self.bounds = bounds
        self._service = service
        self._shadowing = shadowing
        self.resources: dict[str, Callable[[RequestRecord, str], None]] = {}
        """By kind of a resource that paths name beside models: check a name before the body is read, and record it."""
        self.operations: dict[type[Any], Operation] = {}
        """The operations by the class of their requests; filled when the server is built."""
        self._at_close: list[Callable[[], None]] = []
        # One thread: several would only compete for the interpreter's lock.
        self._long_work = ThreadPoolExecutor(1, thread_name_prefix="long-bodies")

    def close(self) -> None:
        """End the thread for long bodies and those of the operations; queued work is dropped."""
        for close in self._at_close:
            close()
        self._long_work.shutdown(wait=False, cancel_futures=True)

    def at_close(self, close: Callable[[], None]) -> None:
        """Call `close` when the pipeline is closed: it ends the threads of an operation."""
        self._at_close.append(close)

    def admit(self, record: RequestRecord) -> RequestContext:
        """Give the request a place at the server; its permit must be released.

        Raises Draining, Overloaded, and QuotaExceeded for a limit of its tenant.
        """
        if self.lifecycle.is_draining:
            self.lifecycle.check_accepting()
        trace = record.trace
        if trace is not None and trace.is_sampled:
            record.timings.trace = RunTrace(trace.span_ref)
        bounds, tenant = self.bounds, record.principal.tenant
        if bounds.tenants:
            limits = bounds.tenants.get(tenant.name)
            if limits is not None:
                record.set_limits(limits)
                return RequestContext(self._models, record, LimitedPermit(bounds.requests, tenant, limits))
        return RequestContext(self._models, record, Permit(bounds.requests, tenant))

    def models_of(self, principal: Principal) -> ModelView:
        """Return the models that a principal may use."""
        return ModelView(self._models, principal)

    def new_permit(self, tenant: Tenant) -> Permit:
        """Return a place at the server for work that is no inference. Raises Draining, Overloaded."""
        self.lifecycle.check_accepting()
        return Permit(self.bounds.requests, tenant)

    async def run(self, context: RequestContext, exchange: Exchange) -> Any:
        """Run an admitted request and return the encoded response; None if it was sent in pieces.

        Raises what decoding raises, DeadlineExceeded, Overloaded and the other ModelUnavailable errors, InvalidInput,
        OutOfMemory, and ClientGone.
        """
        decoded = await self._decode(context, exchange)
        exchange.drop_body()
        hold = context.permit.held_bytes
        if hold is not None:
            received = hold.held_bytes
            hold.resize(decoded_bytes(decoded.request, received) + (received if exchange.keeps_body else 0))
        context.priority = decoded.priority
        timeout_ms = decoded.timeout_ms or self.bounds.default_timeout_ms
        answer: Any
        if type(decoded.request) is GenerateRequest:
            answer = await self._generate(context, exchange, decoded, self._left_s(timeout_ms, context))
            if answer is None:
                return None
        else:
            exchange.watch()
            try:
                if timeout_ms is None and decoded.spec is not None:
                    answer = await self._service.infer(context, decoded.request)
                else:
                    answer = await self._answer_within(self._left_s(timeout_ms, context), context, decoded)
            finally:
                disconnected = exchange.unwatch()
                if disconnected is not None:
                    await disconnected
            if context.shadowed is not None:
                self._shadowing.copy(context.shadowed, decoded.request, answer, context.permit.tenant)
        started_s = time.perf_counter()
        if exchange.is_long_to_encode(decoded, answer):
            # Until the response is sent: others may be encoded before it.
            context.permit.hold_bytes().add(answer_bytes(answer))
            encoded = await self._in_thread(_encode_and_free, exchange, decoded, answer)
        else:
            encoded = exchange.encode(decoded, answer)
        context.timings.encode_s += time.perf_counter() - started_s
        # The model's part is done, even if the client reads the response slowly.
        context.permit.release_version()
        return encoded

    async def _decode(self, context: RequestContext, exchange: Exchange) -> DecodedRequest:
        """Decode the request by the version that answers it, and take a reference to that version.

        Waits if the version has to be loaded first. If it was unloaded meanwhile, the request is routed again.
        """
        while True:
            started_s = time.perf_counter()
            decoded: DecodedRequest | None = None
            try:
                if exchange.is_long_to_decode:
                    # The libraries release the interpreter's lock between their calls: the loop goes on.
                    decoded = await self._in_thread(exchange.decode, context.find_spec)
                else:
                    decoded = exchange.decode(context.find_spec)
            except VersionNotLoaded:
                pass
            finally:
                context.timings.decoded(started_s, time.perf_counter())
            if decoded is None:
                await self._wait_for_load(context, exchange)
            elif decoded.spec is None or context.version.acquire(context.permit, decoded.spec):
                return decoded
            else:
                context.reroute()

    async def _wait_for_load(self, context: RequestContext, exchange: Exchange) -> None:
        """Wait until the version is loaded, or until another version may answer instead.

        Raises DeadlineExceeded, ClientGone, and what the load fails with.
        """
        version, permit = context.not_loaded, context.permit
        assert version is not None
        permit.queue(version.model.requests)
        left_s = self._left_s(context.timeout_ms or self.bounds.default_timeout_ms, context)
        started_s = time.perf_counter()
        exchange.watch()
        try:
            async with asyncio.timeout(None if left_s is None else max(0.0, left_s)):
                await self._models.wait_for(version, permit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{version} was not loaded within timeout_ms; allow more time, or load it before the first request"
            ) from None
        finally:
            context.timings.queued(started_s, time.perf_counter())
            disconnected = exchange.unwatch()
            if disconnected is not None:
                await disconnected
        context.reroute_unless_held(version)

    async def _answer_within(self, left_s: float | None, context: RequestContext, decoded: DecodedRequest) -> Any:
        """Infer or operate before the deadline. A request whose deadline has passed never runs.

        Raises DeadlineExceeded.
        """
        try:
            async with asyncio.timeout(left_s):
                if left_s is not None and left_s <= 0.0:
                    raise TimeoutError
                if decoded.spec is not None:
                    return await self._service.infer(context, decoded.request)
                context.permit.begin()
                return await self.operations[type(decoded.request)](context, decoded.request)
        except TimeoutError:
            name = "the server" if decoded.spec is None else f'model "{context.version.model.name}"'
            raise DeadlineExceeded(
                f"{name} did not answer within timeout_ms; allow more time or ask for less at once"
            ) from None

    async def _generate(
        self, context: RequestContext, exchange: Exchange, decoded: DecodedRequest, left_s: float | None
    ) -> GenerateAnswer | None:
        """Return the whole text; None if the exchange has sent it in pieces."""
        stream = exchange.open_stream(decoded) if decoded.stream else None
        request, adapter = decoded.request, context.record.adapter
        if adapter:
            request = replace(request, adapter=adapter)
        exchange.watch()
        try:
            # Closed at once if the client disconnects or cannot be reached: its sequences end.
            with closing(
                await self._service.generate(context, request, left_s, in_pieces=decoded.stream)
            ) as generation:
                if stream is None:
                    return await generation.collect()
                await stream.send_pieces(generation)
        finally:
            disconnected = exchange.unwatch()
            if disconnected is not None:
                await disconnected
        context.permit.release_version()
        await stream.finish()
        return None

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._long_work, work, *arguments)

    def _left_s(self, timeout_ms: float | None, context: RequestContext) -> float | None:
        """Return the seconds until the request's deadline, counted from its first byte; None if it has no deadline."""
        return None if timeout_ms is None else timeout_ms / 1000 - (time.perf_counter() - context.record.started_s)


def _encode_and_free(exchange: Exchange, decoded: Any, answer: Any) -> Any:
    """Encode a long response. Generated tokens are freed here: at the end of the request, the loop would be held."""
    encoded = exchange.encode(decoded, answer)
    if isinstance(answer, GenerateAnswer):
        answer.drop_tokens()
    return encoded
