"""Every question to a model, whatever its format: plain ASGI, answered before FastAPI's router (150 µs) is asked."""

import asyncio
import re
import time
from asyncio import CancelledError
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.types import Receive, Scope, Send

from app.api.door import Door
from app.api.errors import STATUS_CLIENT_GONE, ClientGone, MethodNotAllowed, is_refusal
from app.api.routes import Address
from app.api.streaming import EventStream
from app.api.wire import GoneWatch, Watched, begin, body_at_hand, check_media_type, read_body, send_error, send_json
from app.api.wire_format import AnswerContext, Decoded, WireFormat
from app.lifecycle import Lifecycle
from app.observe import Observer, RequestRecord
from app.service import InferenceService
from app.shadowing import Shadowing
from frameworks.errors import DeadlineExceeded, Draining, ModelAbsent, ModelNotFound
from frameworks.generation.types import GenerateAnswer, GenerateRequest
from frameworks.manager import MLFrameworkManager
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.tokens import TokenizeAnswer
from frameworks.types import ClassifyAnswer, EmbedAnswer, ScoreAnswer

_MODEL_NAME = re.compile(rb'"model(?:_name)?"\s*:\s*"([^"\\]{1,128})"')
_GLANCE_BYTES = 4096
# From here on decoding or encoding would hold the loop for about a millisecond.
_LONG_BYTES = 256 * 1024
_LONG_ELEMENTS = 32 * 1024


@dataclass(frozen=True, slots=True)
class EndpointBounds:
    """`requests`: of the whole server. `default_timeout_ms`: of a request that names no deadline."""

    requests: RequestLimit
    max_body_bytes: int
    default_timeout_ms: int | None


class Endpoint:
    """Answers what a route table leads to. Every outcome is sent, counted and logged here."""

    def __init__(
        self,
        manager: MLFrameworkManager,
        service: InferenceService,
        shadowing: Shadowing,
        observer: Observer,
        lifecycle: Lifecycle,
        bounds: EndpointBounds,
    ) -> None:
        self._manager = manager
        self._service = service
        self._shadowing = shadowing
        self._observer = observer
        self._lifecycle = lifecycle
        self._requests = bounds.requests
        self._max_body_bytes = bounds.max_body_bytes
        self._default_timeout_ms = bounds.default_timeout_ms
        self._gone_watch = GoneWatch()
        # One thread: several would only fight for the interpreter's lock.
        self._long_work = ThreadPoolExecutor(1, thread_name_prefix="long-bodies")

    def close(self) -> None:
        """Ends the thread of long bodies; what waits for it is dropped."""
        self._long_work.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, address: Address) -> None:
        record = begin(scope)
        self._observer.inflight += 1
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(scope["method"], scope["path"], "POST")
            check_media_type(scope)
            self._lifecycle.check_accepting()
            permit = Permit(self._requests)
            try:
                await self._answer(scope, receive, send, address, record, permit)
            finally:
                permit.release()
        except ClientGone:
            record.status, record.code = STATUS_CLIENT_GONE, "client_gone"
        except CancelledError:
            # Only the end of the drain's time cancels a request: it is answered, so that nobody is left without a word.
            gone_down = Draining("the server went down before this was answered; ask another")
            await send_error(send, record, gone_down, address.wire_format.error_body)
        except Exception as error:  # noqa: BLE001 - the last place before the caller
            await send_error(send, record, error, address.wire_format.error_body)
        finally:
            self._observer.inflight -= 1
            self._observer.inferred(record, time.perf_counter() - record.started_s, is_refusal(record.status))

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, address: Address, record: RequestRecord, permit: Permit
    ) -> None:
        """Decode → wait → infer → encode → send. Raises what goes wrong on the way."""
        door = Door(self._manager, record, permit)
        wire_format, target = address
        glance = None
        if target.model is not None:
            door.look(target.model, target.version)
        else:
            glance = self._refuse_at_a_glance
        body = body_at_hand(record, self._max_body_bytes)
        if body is None:
            body = await read_body(scope, receive, self._max_body_bytes, glance)

        decoded = await self._decoded(body, address, door)
        while decoded is None or not door.enter(decoded.spec):
            # Its version is not loaded, or has left since: a rare thing, and then a long one.
            if decoded is None:
                await self._wait_for(door, receive)
            decoded = await self._decoded(body, address, door)
        del body

        version = door.version
        assert version is not None
        left_s = self._left_s(decoded.timeout_ms, record)
        answer: Any
        if type(decoded.request) is GenerateRequest:
            answer = await self._generate(wire_format, decoded, door, left_s, receive, send)
            if answer is None:
                return
        else:
            watched = self._gone_watch.begin(receive, record.started_s)
            try:
                answer = await self._service.infer(
                    version, decoded.request, record.timings, permit, decoded.priority, left_s
                )
            finally:
                await self._end_watch(watched)
            if door.shadowed is not None:
                self._shadowing.copy(door.shadowed, decoded.request, answer)
        started_s = time.perf_counter()
        context = _context(record, started_s)
        if elements_of(answer) < _LONG_ELEMENTS:
            encoded = wire_format.encode(decoded, answer, context)
        else:
            encoded = await asyncio.get_running_loop().run_in_executor(
                self._long_work, wire_format.encode, decoded, answer, context
            )
        record.timings.encode_s += time.perf_counter() - started_s
        # The model has done its part: a caller that reads slowly does not keep it from leaving.
        permit.end_visit()
        await send_json(send, record, 200, encoded)

    async def _generate(
        self,
        wire_format: WireFormat,
        decoded: Decoded,
        door: Door,
        left_s: float | None,
        receive: Receive,
        send: Send,
    ) -> GenerateAnswer | None:
        """The whole text; None where the caller wanted it in pieces, and has been sent them."""
        record, version = door.record, door.version
        assert version is not None
        stream = None
        if decoded.stream:
            context = _context(record, time.perf_counter())
            stream = EventStream(send, record, wire_format.stream_writer(decoded, context))
        watched = self._gone_watch.begin(receive, record.started_s)
        try:
            generation = await self._service.generate(
                version, decoded.request, record.timings, door.permit, decoded.priority, left_s
            )
            # Whoever leaves, or cannot be told, gives back its place at once.
            with closing(generation):
                if stream is None:
                    return await generation.whole()
                await stream.send_pieces(generation, watched)
        finally:
            await self._end_watch(watched)
        door.permit.end_visit()
        await stream.finish()
        return None

    async def _decoded(self, body: bytes, address: Address, door: Door) -> Decoded | None:
        """The request; None where the version that is to answer it has to be loaded first."""
        wire_format, target = address
        started_s = time.perf_counter()
        try:
            if len(body) < _LONG_BYTES:
                return wire_format.decode(body, target, door.find_spec)
            # In a thread: the interpreter's lock is free between the library's calls, and the loop goes on.
            return await asyncio.get_running_loop().run_in_executor(
                self._long_work, wire_format.decode, body, target, door.find_spec
            )
        except ModelAbsent as absent:
            door.absent = absent
            return None
        finally:
            door.record.timings.decode_s += time.perf_counter() - started_s

    async def _wait_for(self, door: Door, receive: Receive) -> None:
        """Until the version is loaded, or another one may answer instead. Raises DeadlineExceeded, ClientGone, and what
        the load ends with.
        """
        absent, record = door.absent, door.record
        assert absent is not None
        version = absent.version
        door.permit.queue(version.model.requests)
        left_s = self._left_s(absent.timeout_ms, record)
        started_s = time.perf_counter()
        watched = self._gone_watch.begin(receive, record.started_s)
        try:
            async with asyncio.timeout(None if left_s is None else max(0.0, left_s)):
                await self._manager.wait_for(version, door.permit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{version} was not loaded within timeout_ms; allow more time, or load it before it is asked for"
            ) from None
        finally:
            record.timings.queue_s += time.perf_counter() - started_s
            await self._end_watch(watched)
        # It is asked again which version answers, unless this one has waited for the request.
        door.version = version if version.is_visited_by(door.permit) else None

    async def _end_watch(self, watched: Watched) -> None:
        if watched.watcher is None:
            self._gone_watch.forget(watched)
        else:
            await self._gone_watch.end(watched)

    def _refuse_at_a_glance(self, beginning: bytes) -> None:
        """Refuses a long body for a model that has no room without reading all of it. Raises Overloaded.

        The bytes `"model"` cannot stand within a string of JSON, where quotes are escaped.
        """
        named = _MODEL_NAME.search(beginning[:_GLANCE_BYTES])
        if named is not None:
            with suppress(ModelNotFound):
                self._manager.slot(named[1].decode("utf-8", "replace")).requests.check_room()

    def _left_s(self, timeout_ms: int | None, record: RequestRecord) -> float | None:
        """Seconds until the request's deadline, counted from its first byte; None if it has none."""
        timeout_ms = timeout_ms or self._default_timeout_ms
        return None if timeout_ms is None else timeout_ms / 1000 - (time.perf_counter() - record.started_s)


def _context(record: RequestRecord, now_s: float) -> AnswerContext:
    latency_ms = (now_s - record.started_s) * 1e3
    return AnswerContext(record.model, record.version, record.request_id, latency_ms, int(time.time()))


def elements_of(answer: Any) -> int:
    """How many numbers, strings or labels there are to write, in the main."""
    if isinstance(answer, dict):
        elements = 0
        for value in answer.values():
            elements += value.size if isinstance(value, np.ndarray) else elements_of(value)
        return elements
    if isinstance(answer, np.ndarray):
        return answer.size
    if isinstance(answer, EmbedAnswer):
        return answer.embeddings.size
    if isinstance(answer, ClassifyAnswer):
        return 2 * sum(map(len, answer.predictions))
    if isinstance(answer, ScoreAnswer):
        return 4 * len(answer.scores)
    if isinstance(answer, TokenizeAnswer):
        return len(answer.token_ids)
    return len(answer) if isinstance(answer, list) else 1
