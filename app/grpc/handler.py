"""Run one inference request over gRPC through the pipeline: count it, log it, and end the call with a status."""

import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np

from app.grpc.call import Call, GrpcError
from app.http.responses import map_error
from app.inference.context import RequestContext
from app.inference.contract import NamedRequest, Pieces
from app.inference.pipeline import Pipeline
from app.inference.predictions import PredictionStream
from app.observability.metrics import RequestRecord, request_id
from app.observability.traces.traces import Tracer
from app.protocols.shared.codec import LONG_ELEMENTS, elements_of
from app.protocols.shared.errors import STATUS_CLIENT_GONE, grpc_code
from frameworks.core.errors import Draining
from frameworks.generation.types import Generation
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES

# Writing as many strings, or copying as many elements of raw contents, takes about a millisecond.
_LONG_STRINGS = 4096
_LONG_RAW_ELEMENTS = 512 * 1024

SendPieces = Callable[[RequestRecord, Any, Generation], Awaitable[None]]
"""Called with the record, the decoded request and the generation."""


class InferenceCall(NamedTuple):
    """How a request message is read, and its response message written.

    `model` and `version`: as the message names them, "" for none. `write(record, decoded, answer)` returns the
    serialized response. `is_long`: decoding blocks the loop for about a millisecond; `is_answer_long`: writing many
    numbers does; writing many strings always does. `size`: bytes of the message.
    """

    path: str
    model: str
    version: str
    read: Callable[[], NamedRequest]
    write: Callable[[RequestRecord, Any, Any], Any]
    is_long: bool = False
    is_answer_long: bool = False
    size: int = 0


class GrpcRequest(RequestContext):
    """One inference request over gRPC. The task of a cancelled call is cancelled.

    The response is written from the message too, which is kept.
    """

    keeps_body = True

    def __init__(self, inference: InferenceCall, call: Call, send_pieces: SendPieces | None) -> None:
        super().__init__(request_id(call.headers), "gRPC", inference.path, time.perf_counter())
        self.principal, self.request_bytes = call.principal, inference.size
        self.read = inference.read
        self.is_long_to_decode = inference.is_long
        self._inference = inference
        self._send_pieces = send_pieces

    def is_long_to_encode(self, decoded: Any, answer: Any) -> bool:
        elements = elements_of(answer)
        if elements < _LONG_STRINGS:
            return False
        longest = LONG_ELEMENTS if self._inference.is_answer_long else _LONG_RAW_ELEMENTS
        return elements >= longest or _has_strings(answer)

    def encode(self, decoded: Any, answer: Any) -> Any:
        return self._inference.write(self, decoded, answer)

    def open_stream(self, decoded: Any) -> "_PieceStream | None":
        return None if self._send_pieces is None else _PieceStream(self._send_pieces, self, decoded)


class _PieceStream:
    """Generated text that is sent in pieces by the handler of a stream."""

    def __init__(self, send_pieces: SendPieces, record: RequestRecord, decoded: Any) -> None:
        self._send_pieces = send_pieces
        self._record = record
        self._decoded = decoded

    async def send_pieces(self, generation: Pieces) -> None:
        assert not isinstance(generation, PredictionStream), "no call of gRPC asks for pieces of a task"
        await self._send_pieces(self._record, self._decoded, generation)

    async def finish(self) -> None:
        """The last piece says that it is the last."""


class GrpcHandler:
    """Owned by the event loop."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._observer = pipeline.observer

    async def run(self, inference: InferenceCall, call: Call, send_pieces: SendPieces | None = None) -> Any:
        """Return what `write` returns; None if the response is text that `send_pieces` has sent. Raises GrpcError."""
        request, tracer = GrpcRequest(inference, call, send_pieces), self._observer.tracer
        if tracer is not None:
            request.trace = tracer.begin(call.headers)
            request.trace.checked = call.checked
        self._observer.inflight += 1
        try:
            self.pipeline.admit(request)
            try:
                if inference.size > UNCOUNTED_BYTES:
                    request.permit.hold_bytes().grow(inference.size)
                if inference.model:
                    request.check_available(inference.model, inference.version or None)
                response = await self.pipeline.run(request)
                request.status = 200
                if response is not None:
                    request.response_bytes = len(response)
                return response
            finally:
                request.permit.release()
        except CancelledError:
            if not self.pipeline.lifecycle.is_draining:
                request.status, request.code = STATUS_CLIENT_GONE, "client_gone"
                raise
            # The end of the drain time cancels the request, which is answered all the same.
            error = Draining(Draining.UNANSWERED)
            raise as_grpc_error(error, request) from None
        except Exception as error:
            raise as_grpc_error(error, request) from error
        finally:
            self._observer.inflight -= 1
            self._observer.record_inference(request, time.perf_counter() - request.started_s)


def begin_record(path: str, call: Call, tracer: Tracer | None) -> RequestRecord:
    """Return the record of a call that starts now. `tracer`: begins its trace; None: it has none."""
    headers = call.headers
    record = RequestRecord(request_id(headers), "gRPC", path, time.perf_counter())
    record.principal = call.principal
    if tracer is not None:
        record.trace = tracer.begin(headers)
        record.trace.checked = call.checked
    return record


def _has_strings(answer: Any) -> bool:
    values = answer.values() if isinstance(answer, dict) else (answer,)
    return any(isinstance(value, np.ndarray) and value.dtype == object for value in values)


def as_grpc_error(error: BaseException, record: RequestRecord) -> GrpcError:
    """Return the status that ends the call, and note it on the record."""
    from app.protocols.open_inference.infer_request import with_own_field

    if isinstance(error, GrpcError):
        record.status, record.code, record.error = error.status, error.reason, error.message
        return error
    reply = map_error(error, record)
    record.status = reply.status
    return GrpcError(grpc_code(error), with_own_field(reply).message, reply.status, reply.code)
