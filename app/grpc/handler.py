"""One question to a model by gRPC on the pipeline of all requests: counted, logged, and ended with a status."""

import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from app.grpc.call import Call, GrpcError
from app.http.wire import map_error
from app.inference.context import RequestContext
from app.inference.pipeline import DecodedRequest, FindSpec, Pipeline
from app.observability.metrics import RequestRecord, request_id
from app.protocols.codec import LONG_ELEMENTS, elements_of
from app.protocols.errors import STATUS_CLIENT_GONE, grpc_code, is_refusal
from app.protocols.open_inference.infer_request import own_name
from frameworks.errors import Draining
from frameworks.generation.types import GenerateRequest, Generation

SendPieces = Callable[[RequestRecord, Any, Generation], Awaitable[None]]
"""Given the record, the decoded question and the answer in the making."""


class Question(NamedTuple):
    """How a question is read, and its answer written.

    `model` and `version`: as the message names them, "" for none. `write(record, decoded, answer)`. `is_long`: to read
    it holds the loop for about a millisecond; `is_answer_long`: to write many elements does.
    """

    path: str
    model: str
    version: str
    decode: Callable[[FindSpec], DecodedRequest]
    write: Callable[[RequestRecord, Any, Any], Any]
    is_long: bool = False
    is_answer_long: bool = False


class _Cancelled:
    """As Caller of app/inference/pipeline.py: the transport itself cancels the task of a call whose caller is gone."""

    def watch(self) -> None:
        pass

    async def unwatch(self) -> None:
        pass


_CALLER = _Cancelled()


class GrpcHandler:
    """Owned by the event loop."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._observer = pipeline.observer

    async def ask(self, question: Question, call: Call, send_pieces: SendPieces | None = None) -> Any:
        """What `write` gives; None where the answer is a text and `send_pieces` has sent it. Raises GrpcError."""
        record = RequestRecord(request_id(call.headers), "gRPC", question.path, time.perf_counter())
        self._observer.inflight += 1
        try:
            permit = self.pipeline.new_permit()
            try:
                return await self._answer(question, RequestContext(self.pipeline.manager, record, permit), send_pieces)
            finally:
                permit.release()
        except CancelledError:
            if not self.pipeline.lifecycle.is_draining:
                record.status, record.code = STATUS_CLIENT_GONE, "client_gone"
                raise
            # Perhaps at the end of the drain's time: nobody is left without a word.
            raise failure(Draining("the server went down before this was answered; ask another"), record) from None
        except Exception as error:
            raise failure(error, record) from error
        finally:
            self._observer.inflight -= 1
            self._observer.inferred(record, time.perf_counter() - record.started_s, is_refusal(record.status))

    async def _answer(self, question: Question, door: RequestContext, send_pieces: SendPieces | None) -> Any:
        """Decode → wait → infer → encode. Raises what goes wrong on the way."""
        pipeline, record = self.pipeline, door.record
        if question.model:
            door.look(question.model, question.version or None)
        decoded = await pipeline.enter(door, question.decode, question.is_long, _CALLER)
        answer: Any
        if type(decoded.request) is GenerateRequest:
            with closing(await pipeline.generate(door, decoded)) as generation:
                if send_pieces is not None and decoded.stream:
                    await send_pieces(record, decoded, generation)
                    record.status = 200
                    return None
                answer = await generation.whole()
        else:
            answer = await pipeline.infer(door, decoded, _CALLER)
        is_long = question.is_answer_long and elements_of(answer) >= LONG_ELEMENTS
        encoded = await pipeline.encode(door, partial(question.write, record, decoded, answer), is_long)
        record.status = 200
        return encoded


def failure(error: BaseException, record: RequestRecord) -> GrpcError:
    """What ends a call that an error has come to; the record says so too."""
    if isinstance(error, GrpcError):
        record.status, record.code = 400, "invalid_input"
        return error
    record.status, _, message = map_error(error, record)
    return GrpcError(grpc_code(error), own_name(message))
