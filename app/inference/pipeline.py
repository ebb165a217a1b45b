"""The path of one request, for every protocol: decode, wait for a load, infer or generate, encode."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from app.auth.principal import Principal
from app.auth.quotas import LimitedPermit
from app.inference.bounds import Bounds
from app.inference.context import InferenceService, RequestContext
from app.inference.contract import DecodedRequest, NamedRequest
from app.inference.decoded_size import answer_bytes, decoded_bytes
from app.inference.lifecycle import Lifecycle
from app.inference.media_fetch import MediaFetcher
from app.inference.model_view import ModelView
from app.inference.predictions import PredictionStream
from app.inference.shadowing import ShadowTraffic
from app.observability.metrics import Observer, RequestRecord
from frameworks.core.errors import DeadlineExceeded
from frameworks.core.tenants import Tenant
from frameworks.core.timings import RunTrace
from frameworks.generation.types import Conversation, GenerateAnswer, GenerateRequest
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.version import VersionNotLoaded
from frameworks.scheduling.admission import Permit
from frameworks.tasks.types import TaskRequest
from frameworks.text.tokens import TokenizeRequest
from frameworks.types import ConversationRequest, ModelSpec

Result = TypeVar("Result")
_WITH_FILES = (TokenizeRequest, ConversationRequest)
"""Requests whose conversation may name files by URL, beside those for a text."""
_LOOP_CHECK_S = 1.0
"""How often a thread that waits for the event loop checks that the loop still runs."""


class Operation(Protocol):
    """Answer the requests of one class that are for no model of their own, such as a search."""

    async def __call__(self, context: RequestContext, request: Any) -> Any:
        """Return the answer, which the codec encodes. Cancelled at the deadline, or if the client disconnects."""
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
        self._media = MediaFetcher(bounds.media_hosts)
        self._at_close: list[Callable[[], None]] = [self._media.close]
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

    def admit(self, context: RequestContext) -> None:
        """Give the request a place at the server; its permit must be released.

        Raises Draining, Overloaded, and QuotaExceeded for a limit of its tenant.
        """
        if self.lifecycle.is_draining:
            self.lifecycle.check_accepting()
        trace = context.trace
        if trace is not None and trace.is_sampled:
            context.timings.trace = RunTrace(trace.span_ref)
        bounds, tenant = self.bounds, context.principal.tenant
        context.served_models = self._models
        limits = bounds.tenants.get(tenant.name) if bounds.tenants else None
        if limits is None:
            context.permit = Permit(bounds.requests, tenant)
        else:
            context.set_limits(limits)
            context.permit = LimitedPermit(bounds.requests, tenant, limits)

    def models_of(self, principal: Principal) -> ModelView:
        """Return the models that a principal may use."""
        return ModelView(self._models, principal)

    def new_permit(self, tenant: Tenant) -> Permit:
        """Return a place at the server for work that is no inference. Raises Draining, Overloaded."""
        self.lifecycle.check_accepting()
        return Permit(self.bounds.requests, tenant)

    async def run(self, context: RequestContext) -> Any:
        """Run an admitted request and return the encoded response; None if it was sent in pieces.

        Raises what decoding raises, DeadlineExceeded, Overloaded and the other ModelUnavailable errors, InvalidInput,
        OutOfMemory, and ClientGone.
        """
        decoded = await self._decode(context)
        del context.read
        hold = context.permit.held_bytes
        if hold is not None:
            received = hold.held_bytes
            hold.resize(decoded_bytes(decoded.request, received) + (received if context.keeps_body else 0))
        context.priority = decoded.priority
        timeout_ms = decoded.timeout_ms or self.bounds.default_timeout_ms
        answer: Any
        if decoded.stream or type(decoded.request) is GenerateRequest:
            answer = await self._in_pieces(context, decoded, timeout_ms)
            if answer is None:
                return None
        else:
            context.is_watched = True
            try:
                if timeout_ms is None and decoded.spec is not None and type(decoded.request) not in _WITH_FILES:
                    answer = await self._service.infer(context, decoded.request)
                else:
                    answer = await self._answer_within(self._left_s(timeout_ms, context), context, decoded)
            finally:
                context.is_watched = False
                if context.watching is not None:
                    await context.end_watch()
            if context.shadowed is not None and not _differs_when_copied(decoded.request):
                self._shadowing.copy(context.shadowed, decoded.request, answer, context.permit.tenant)
        started_s = time.perf_counter()
        if context.is_long_to_encode(decoded, answer):
            # Until the response is sent: others may be encoded before it.
            context.permit.hold_bytes().add(answer_bytes(answer))
            # A sound takes seconds, and its encoder frees the interpreter's lock.
            in_thread = asyncio.to_thread if type(decoded.request) is TaskRequest else self._in_thread
            encoded = await in_thread(_encode_and_free, context, decoded, answer)
        else:
            encoded = context.encode(decoded, answer)
        context.timings.encode_s += time.perf_counter() - started_s
        # The model's part is done, even if the client reads the response slowly. As Permit.release_version, inline.
        permit, held = context.permit, context.permit.held
        if held is not None:
            permit.held = None
            held.release(permit)
        return encoded

    async def _decode(self, context: RequestContext) -> DecodedRequest:
        """Read the names, route the request, decode it by the chosen version, and take a reference to that version.

        Waits if the version has to be loaded first. If it was unloaded meanwhile, the request is routed again.
        """
        while True:
            started_s = time.perf_counter()
            decoded: DecodedRequest | None = None
            try:
                if context.is_long_to_decode:
                    # The libraries release the interpreter's lock between their calls: the loop goes on.
                    decoded = await self._in_thread(_decode_routed, context, asyncio.get_running_loop())
                else:
                    named = context.read()
                    decoded = named.decode(None if named.model is None else context.route(named))
            except VersionNotLoaded:
                named = None  # it holds the parsed body, and the request may wait long
            finally:
                context.timings.decoded(started_s, time.perf_counter())
            if decoded is None:
                await self._wait_for_load(context)
            elif decoded.spec is None or context.model_version.acquire(context.permit, decoded.spec):
                return decoded
            else:
                context.reroute()

    async def _wait_for_load(self, context: RequestContext) -> None:
        """Wait until the version is loaded, or until another version may answer instead.

        Raises DeadlineExceeded, ClientGone, and what the load fails with.
        """
        version, permit = context.not_loaded, context.permit
        assert version is not None
        permit.queue(version.model.requests)
        left_s = self._left_s(context.load_timeout_ms or self.bounds.default_timeout_ms, context)
        started_s = time.perf_counter()
        context.is_watched = True
        try:
            async with asyncio.timeout(None if left_s is None else max(0.0, left_s)):
                await self._models.wait_for(version, permit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{version} was not loaded within timeout_ms; allow more time, or load it before the first request"
            ) from None
        finally:
            context.is_watched = False
            context.timings.queued(started_s, time.perf_counter())
            if context.watching is not None:
                await context.end_watch()
        context.reroute_unless_held(version)

    async def _answer_within(self, left_s: float | None, context: RequestContext, decoded: DecodedRequest) -> Any:
        """Infer or operate before the deadline. A request whose deadline has passed never runs.

        Raises DeadlineExceeded.
        """
        try:
            async with asyncio.timeout(left_s):
                if left_s is not None and left_s <= 0.0:
                    raise TimeoutError
                request = decoded.request
                if type(request) is TokenizeRequest and type(request.prompt) is Conversation:
                    request = replace(request, prompt=await self._with_files(request.prompt, context, decoded))
                elif type(request) is ConversationRequest:
                    conversation = await self._with_files(request.conversation, context, decoded)
                    request = replace(request, conversation=conversation)
                if decoded.spec is not None:
                    return await self._service.infer(context, request)
                context.permit.begin()
                return await self.operations[type(request)](context, request)
        except TimeoutError:
            name = "the server" if decoded.spec is None else f'model "{context.model_version.model.name}"'
            raise DeadlineExceeded(
                f"{name} did not answer within timeout_ms; allow more time or ask for less at once"
            ) from None

    def _in_pieces(
        self, context: RequestContext, decoded: DecodedRequest, timeout_ms: float | None
    ) -> Awaitable[GenerateAnswer | None]:
        """Return the whole text; None if the response was sent in pieces."""
        answer = self._generate if type(decoded.request) is GenerateRequest else self._send_predictions
        return answer(context, decoded, timeout_ms)

    async def _generate(
        self, context: RequestContext, decoded: DecodedRequest, timeout_ms: float | None
    ) -> GenerateAnswer | None:
        """Return the whole text; None if it was sent in pieces."""
        stream = context.open_stream(decoded) if decoded.stream else None
        request = decoded.request
        if context.adapter:
            request = replace(request, adapter=context.adapter)
        context.is_watched = True
        try:
            prompt = request.prompts[0]
            if type(prompt) is Conversation and prompt.has_urls:
                request = replace(request, prompts=(await self._with_files(prompt, context, decoded),))
            left_s = self._left_s(timeout_ms, context)
            # Closed at once if the client disconnects or cannot be reached: its sequences end.
            with closing(
                await self._service.generate(context, request, left_s, in_pieces=decoded.stream)
            ) as generation:
                if stream is None:
                    return await generation.collect()
                await stream.send_pieces(generation)
        finally:
            context.is_watched = False
            if context.watching is not None:
                await context.end_watch()
        context.permit.release_version()
        await stream.finish()
        return None

    async def _send_predictions(
        self, context: RequestContext, decoded: DecodedRequest, timeout_ms: float | None
    ) -> None:
        """Answer the inputs of a task one after the other, and send each prediction when it is there."""
        stream = context.open_stream(decoded)
        assert stream is not None
        left_s = self._left_s(timeout_ms, context)
        context.is_watched = True
        try:
            await stream.send_pieces(PredictionStream(partial(self._service.infer, context), decoded.request, left_s))
        finally:
            context.is_watched = False
            if context.watching is not None:
                await context.end_watch()
        context.permit.release_version()
        await stream.finish()

    async def _with_files(
        self, conversation: Conversation, context: RequestContext, decoded: DecodedRequest
    ) -> Conversation:
        """Return a conversation with the files of its URLs. Raises InvalidInput, Overloaded."""
        if not conversation.has_urls:
            return conversation
        return await self._media.fetch(conversation, decoded.spec, context.permit.hold_bytes())

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._long_work, work, *arguments)

    def _left_s(self, timeout_ms: float | None, context: RequestContext) -> float | None:
        """Return the seconds until the request's deadline, counted from its first byte; None if it has no deadline."""
        return None if timeout_ms is None else timeout_ms / 1000 - (time.perf_counter() - context.started_s)


def _differs_when_copied(request: Any) -> bool:
    """Whether files of a request were fetched, so that a copy of it would lack them, or its answer is random."""
    if type(request) is TaskRequest:
        return request.is_random
    return type(request) is ConversationRequest and request.conversation.has_urls


def _decode_routed(context: RequestContext, loop: asyncio.AbstractEventLoop) -> DecodedRequest:
    """Read and decode on this thread, and route on the event loop between both.

    No other body is read between them: several parsed documents at once do not fit in the cache of the CPU.
    """
    named = context.read()
    decode: Callable[[ModelSpec | None], DecodedRequest] = named.decode
    if named.model is None:
        return decode(None)
    routed: Future[ModelSpec] = Future()
    loop.call_soon_threadsafe(_route, context, named, routed)
    while not routed.done() and loop.is_running():
        wait([routed], _LOOP_CHECK_S)
    failure = routed.exception(timeout=0)
    if failure is None:
        return decode(routed.result())
    try:
        raise failure
    finally:
        # The error holds this frame: what is left here would hold the parsed body until the next garbage collection.
        del failure, routed, named, decode


def _route(context: RequestContext, named: NamedRequest, routed: "Future[ModelSpec]") -> None:
    try:
        routed.set_result(context.route(named))
    except Exception as error:  # noqa: BLE001 - the thread raises it
        routed.set_exception(error)


def _encode_and_free(context: RequestContext, decoded: Any, answer: Any) -> Any:
    """Encode a long response. Generated tokens are freed here: at the end of the request, the loop would be held."""
    encoded = context.encode(decoded, answer)
    if isinstance(answer, GenerateAnswer):
        answer.drop_tokens()
    return encoded
