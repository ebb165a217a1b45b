"""Every question to a model, whatever its format: plain ASGI, answered before FastAPI's router (150 µs) is asked."""

import re
import time
from asyncio import CancelledError
from contextlib import closing, suppress
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from app.http.sse import EventStream
from app.http.wire import DisconnectWatcher, HttpCaller, begin, body_at_hand, read_body, send_body, send_error
from app.inference.context import RequestContext
from app.inference.pipeline import DecodedRequest, Pipeline
from app.observability.metrics import RequestRecord
from app.protocols.codec import AnswerContext, Codec, EncodedResponse
from app.protocols.errors import STATUS_CLIENT_GONE, ClientGone, MethodNotAllowed, is_refusal
from app.protocols.routes import ResolvedRoute
from frameworks.errors import Draining, ModelNotFound
from frameworks.generation.types import GenerateAnswer, GenerateRequest

_MODEL_NAME = re.compile(rb'"model(?:_name)?"\s*:\s*"([^"\\]{1,128})"')
_GLANCE_BYTES = 4096


class Endpoint:
    """Answers what a route table leads to. Every outcome is sent, counted and logged here."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._journey = pipeline
        self._observer = pipeline.observer
        self._max_body_bytes = pipeline.bounds.max_body_bytes
        self._gone_watch = DisconnectWatcher()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, address: ResolvedRoute) -> None:
        record = begin(scope)
        self._observer.inflight += 1
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(scope["method"], scope["path"], "POST")
            codec = address.codec.for_headers(scope["headers"])
            permit = self._journey.new_permit()
            try:
                door = RequestContext(self._journey.manager, record, permit)
                await self._answer(scope, receive, send, ResolvedRoute(codec, address.target), door)
            finally:
                permit.release()
        except ClientGone:
            record.status, record.code = STATUS_CLIENT_GONE, "client_gone"
        except CancelledError:
            # Only the end of the drain's time cancels a request: it is answered, so that nobody is left without a word.
            gone_down = Draining("the server went down before this was answered; ask another")
            await send_error(send, record, gone_down, address.codec.error_body)
        except Exception as error:  # noqa: BLE001 - the last place before the caller
            await send_error(send, record, error, address.codec.error_body)
        finally:
            self._observer.inflight -= 1
            self._observer.inferred(record, time.perf_counter() - record.started_s, is_refusal(record.status))

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, address: ResolvedRoute, door: RequestContext
    ) -> None:
        """Decode → wait → infer → encode → send. Raises what goes wrong on the way."""
        codec, target = address
        record = door.record
        glance = None
        if target.model is not None:
            door.look(target.model, target.version)
        else:
            glance = self._refuse_at_a_glance
        lead_bytes = codec.lead_bytes
        body = body_at_hand(record, self._max_body_bytes, lead_bytes)
        if body is None:
            body = await read_body(scope, receive, self._max_body_bytes, glance, record.fast_path, lead_bytes)

        pipeline, caller = self._journey, HttpCaller(self._gone_watch, receive, record.started_s)
        is_long = codec.is_long_to_read(body)
        decoded = await pipeline.enter(door, partial(codec.decode, body, target), is_long, caller)
        del body

        answer: Any
        if type(decoded.request) is GenerateRequest:
            answer = await self._generate(codec, decoded, door, caller, send)
            if answer is None:
                return
        else:
            answer = await pipeline.infer(door, decoded, caller)
        context = _context(record, time.perf_counter())
        is_long = codec.is_long_to_write(decoded, answer)
        encoded = await pipeline.encode(door, partial(codec.encode, decoded, answer, context), is_long)
        if isinstance(encoded, EncodedResponse):
            await send_body(send, record, 200, encoded.body, encoded.content_type, encoded.headers)
        else:
            await send_body(send, record, 200, encoded)

    async def _generate(
        self, codec: Codec, decoded: DecodedRequest, door: RequestContext, caller: HttpCaller, send: Send
    ) -> GenerateAnswer | None:
        """The whole text; None where the caller wanted it in pieces, and has been sent them."""
        record = door.record
        stream = None
        if decoded.stream:
            context = _context(record, time.perf_counter())
            stream = EventStream(send, record, codec.stream_writer(decoded, context))
        caller.watch()
        try:
            # Whoever leaves, or cannot be told, gives back its place at once.
            with closing(await self._journey.generate(door, decoded)) as generation:
                if stream is None:
                    return await generation.whole()
                await stream.send_pieces(generation, caller)
        finally:
            await caller.unwatch()
        door.permit.release_model()
        await stream.finish()
        return None

    def _refuse_at_a_glance(self, beginning: bytes) -> None:
        """Refuses a long body for a model that has no room without reading all of it. Raises Overloaded.

        The bytes `"model"` cannot stand within a string of JSON, where quotes are escaped.
        """
        named = _MODEL_NAME.search(beginning[:_GLANCE_BYTES])
        if named is not None:
            with suppress(ModelNotFound):
                self._journey.manager.slot(named[1].decode("utf-8", "replace")).requests.check_room()


def _context(record: RequestRecord, now_s: float) -> AnswerContext:
    latency_ms = (now_s - record.started_s) * 1e3
    return AnswerContext(record.model, record.version, record.request_id, latency_ms, int(time.time()))
