"""Run one inference request over gRPC through the pipeline: count it, log it, and end the call with a status."""

import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np

from app.grpc.call import Call, GrpcError
from app.http.responses import map_error
from app.inference.pipeline import DecodedRequest, FindSpec, Pipeline
from app.observability.metrics import RequestRecord, request_id
from app.observability.traces.traces import Tracer
from app.protocols.open_inference.infer_request import with_own_field
from app.protocols.shared.codec import LONG_ELEMENTS, elements_of
from app.protocols.shared.errors import STATUS_CLIENT_GONE, grpc_code
from frameworks.core.errors import Draining
from frameworks.generation.types import Generation
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES

# Writing as many strings, or copying as many numbers of raw contents, takes about a millisecond.
_LONG_STRINGS = 4096
_LONG_RAW_ELEMENTS = 512 * 1024

SendPieces = Callable[[RequestRecord, Any, Generation], Awaitable[None]]
"""Called with the record, the decoded request and the generation."""


class InferenceCall(NamedTuple):
    """How a request message is decoded, and its response message written.

    `model` and `version`: as the message names them, "" for none. `write(record, decoded, answer)` returns the
    serialized response. `is_long`: decoding blocks the loop for about a millisecond; `is_answer_long`: writing many
    numbers does; writing many strings always does. `size`: bytes of the message.
    """

    path: str
    model: str
    version: str
    decode: Callable[[FindSpec], DecodedRequest]
    write: Callable[[RequestRecord, Any, Any], Any]
    is_long: bool = False
    is_answer_long: bool = False
    size: int = 0


class GrpcExchange:
    """One inference request over gRPC, as the pipeline's Exchange. The bridge cancels the task of a cancelled call."""

    __slots__ = ("_call", "_record", "_send_pieces", "decode", "is_long_to_decode")

    keeps_body = True

    def __init__(self, call: InferenceCall, record: RequestRecord, send_pieces: SendPieces | None) -> None:
        self._call = call
        self._record = record
        self._send_pieces = send_pieces
        self.decode = call.decode
        self.is_long_to_decode = call.is_long

    def drop_body(self) -> None:
        """Keep the message: its response is written from it too."""

    def is_long_to_encode(self, decoded: Any, answer: Any) -> bool:
        elements = elements_of(answer)
        if elements < _LONG_STRINGS:
            return False
        longest = LONG_ELEMENTS if self._call.is_answer_long else _LONG_RAW_ELEMENTS
        return elements >= longest or _has_strings(answer)

    def encode(self, decoded: Any, answer: Any) -> Any:
        return self._call.write(self._record, decoded, answer)

    def open_stream(self, decoded: Any) -> "_PieceStream | None":
        return None if self._send_pieces is None else _PieceStream(self._send_pieces, self._record, decoded)

    def watch(self) -> None:
        pass

    def unwatch(self) -> None:
        pass


class _PieceStream:
    """Generated text that is sent in pieces by the handler of a stream."""

    def __init__(self, send_pieces: SendPieces, record: RequestRecord, decoded: Any) -> None:
        self._send_pieces = send_pieces
        self._record = record
        self._decoded = decoded

    async def send_pieces(self, generation: Generation) -> None:
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
        record = begin_record(inference.path, call, self._observer.tracer)
        record.request_bytes = inference.size
        self._observer.inflight += 1
        try:
            context = self.pipeline.admit(record)
            try:
                if inference.size > UNCOUNTED_BYTES:
                    context.permit.hold_bytes().grow(inference.size)
                if inference.model:
                    context.check_available(inference.model, inference.version or None)
                response = await self.pipeline.run(context, GrpcExchange(inference, record, send_pieces))
                record.status = 200
                if response is not None:
                    record.response_bytes = len(response)
                return response
            finally:
                context.permit.release()
        except CancelledError:
            if not self.pipeline.lifecycle.is_draining:
                record.status, record.code = STATUS_CLIENT_GONE, "client_gone"
                raise
            # The end of the drain time cancels the request, which is answered all the same.
            error = Draining(Draining.UNANSWERED)
            raise as_grpc_error(error, record) from None
        except Exception as error:
            raise as_grpc_error(error, record) from error
        finally:
            self._observer.inflight -= 1
            self._observer.record_inference(record, time.perf_counter() - record.started_s)


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
    if isinstance(error, GrpcError):
        record.status, record.code, record.error = error.status, error.reason, error.message
        return error
    reply = map_error(error, record)
    record.status = reply.status
    return GrpcError(grpc_code(error), with_own_field(reply).message, reply.status, reply.code)
