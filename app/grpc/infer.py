"""Answer ModelInfer and ModelStreamInfer."""

import asyncio
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from app.grpc.call import Call, GrpcError, StreamingCall, earlier_ms
from app.grpc.handler import GrpcHandler, InferenceCall
from app.grpc.infer_messages import is_typed, parse_request, serialize_response, serialize_stream_response
from app.grpc.messages import INFERENCE_SERVICE, ModelStreamInferResponse
from app.grpc.received import ReceivedInfer, read_infer
from app.grpc.repeated_messages import KnownMessage, KnownMessages
from app.grpc.streams import OpenStreams, next_request
from app.inference.contract import NamedRequest
from app.observability.metrics import RequestRecord
from app.protocols.open_inference.generate_tensors import StreamedTensors
from app.protocols.open_inference.infer_request import SEQUENCE_FIELDS, check_request, wants_text_in_parts
from app.protocols.open_inference.infer_response import output_tensors
from app.protocols.open_inference.infer_types import InferRequest, OutputTensor
from frameworks.engine.generating.stream import read_in_time
from frameworks.generation.types import Generation
from frameworks.types import Answer, ModelSpec

_INFER = f"/{INFERENCE_SERVICE}/ModelInfer"
_STREAM_INFER = f"/{INFERENCE_SERVICE}/ModelStreamInfer"
# Requests of one stream that run at once.
_MAX_CONCURRENT_REQUESTS = 64
# Open streams. Half of all calls are left for other methods.
_MAX_STREAMS = 1024
_MAX_STREAMS_ON_ONE_CONNECTION = 256
# A stream without a request for as long, and with none that runs, ends.
_IDLE_S = 3600.0
# From these on, decoding raw contents other than strings takes a millisecond: they are copied if they are not aligned.
_LONG_RAW_BYTES = 1024 * 1024
_MANY_FIELDS = 256
# The response parameter that tells the client of a stream whether the request has more responses.
_FINAL = "triton_final_response"

Write = Callable[[str, bool, RequestRecord, InferRequest, Any], bytes]
"""Takes the request's id and whether its contents are typed."""
Note = Callable[[bytes, str, str, InferRequest], None]
"""As KnownMessages.note."""


class InferCalls:
    """Owned by the event loop."""

    def __init__(self, handler: GrpcHandler) -> None:
        self._handler = handler
        self._known = KnownMessages()
        self._streams = OpenStreams("ModelStreamInfer", _MAX_STREAMS, _MAX_STREAMS_ON_ONE_CONNECTION)

    async def model_infer(self, request: bytes, call: Call) -> bytes:
        known = self._known.find(request)
        if known is None:
            inference = _inference_call(_INFER, read_infer(request), call, _write_response, note=self._known.note)
        else:
            inference = self._repeated_call(known, request, call)
        response: bytes = await self._handler.run(inference, call)
        return response

    def _repeated_call(self, known: KnownMessage, request: bytes, call: Call) -> InferenceCall:
        decode = partial(self._decode_known, known, request, call)
        named = NamedRequest(known.model, known.version or None, decode, partial(earlier_ms, None, call))
        write = partial(_write_response, known.decoded.id, False)
        return InferenceCall(_INFER, known.model, known.version, lambda: named, write, size=len(request))

    def _decode_known(self, known: KnownMessage, request: bytes, call: Call, spec: ModelSpec) -> InferRequest:
        if spec is known.decoded.spec:
            return known.decode(request, call)
        # Another version answers, or what is known of the model has changed.
        return _decode(read_infer(request), call, False, self._known.note, spec)

    async def model_stream_infer(self, requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        """Answer tensors in the order of their requests; send generated text as soon as it is decoded."""
        with self._streams.count(call):
            try:
                await _InferStream(self._handler, call).answer_all(requests)
            except CancelledError:
                if not self._handler.pipeline.lifecycle.is_draining:
                    raise
                raise GrpcError("UNAVAILABLE", "the server is draining; send the request to another server") from None


class _InferStream:
    """One ModelStreamInfer call. A slow reader blocks its responses, and then the reading of its requests."""

    def __init__(self, handler: GrpcHandler, call: StreamingCall) -> None:
        self._handler = handler
        self._call = call
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)
        self._has_long_steps = False

    async def answer_all(self, requests: AsyncIterator[bytes]) -> None:
        """Run all requests and send their responses. Raises GrpcError for a request that ends the stream."""
        tasks: set[asyncio.Task[None]] = set()
        end: GrpcError | None = None
        previous = _completed()
        try:
            try:
                while (request := await self._next(requests, tasks)) is not None:
                    await self._slots.acquire()
                    received = read_infer(request)
                    current = asyncio.get_running_loop().create_future()
                    task = asyncio.create_task(self._answer(received, previous, current))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    previous = current
            except GrpcError as error:
                end = error
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if end is not None:
            raise end

    async def _next(self, requests: AsyncIterator[bytes], tasks: set[asyncio.Task[None]]) -> bytes | None:
        """Return the next request, None at the end. Raises GrpcError if the stream is idle for too long."""
        while True:
            try:
                return await next_request(requests, _IDLE_S)
            except GrpcError as error:
                # A text may be generated for longer.
                if error.code != "DEADLINE_EXCEEDED" or not tasks:
                    raise

    async def _answer(
        self, received: ReceivedInfer, previous: asyncio.Future[None], current: asyncio.Future[None]
    ) -> None:
        """Answer one request. `previous` completes with the request before it; this method completes `current`."""
        message = received.message
        inference = _inference_call(_STREAM_INFER, received, self._call, _write_last_response, is_streamed=True)
        if SEQUENCE_FIELDS[0] in message.parameters:
            # The thread that decodes a long step keeps the order of those after it.
            self._has_long_steps = self._has_long_steps or inference.is_long
            inference = inference._replace(is_long=self._has_long_steps)
        try:
            try:
                response: bytes | None = await self._handler.run(
                    inference, self._call, partial(self._send_text, received, current)
                )
                await previous
            except GrpcError as error:
                failed = ModelStreamInferResponse(error_message=error.message)
                failed.infer_response.id = message.id
                failed.infer_response.model_name = message.model_name
                response = failed.SerializeToString()
            finally:
                if not current.done():
                    current.set_result(None)
            if response is not None:
                await self._call.send(response)
        finally:
            # A slow reader keeps the place, so that no more requests of its stream are read.
            self._slots.release()

    async def _send_text(
        self,
        received: ReceivedInfer,
        current: asyncio.Future[None],
        record: RequestRecord,
        decoded: InferRequest,
        generation: Generation,
    ) -> None:
        # Later requests do not wait for the end of a generated text.
        current.set_result(None)
        request_id, typed = received.message.id, is_typed(received)
        responses = StreamedTensors(decoded)
        async with read_in_time(generation.deadline_s):
            async for piece in generation:
                tensors = responses.add(piece, generation.usage)
                if tensors is not None:
                    part = _stream_response(request_id, typed, tensors, record, responses.is_last)
                    record.response_bytes += len(part)
                    await self._call.send(part)


def _inference_call(
    path: str,
    received: ReceivedInfer,
    call: Call,
    write: Write,
    is_streamed: bool = False,
    note: Note | None = None,
) -> InferenceCall:
    message, typed = received.message, is_typed(received)
    read = partial(_read, received, call, is_streamed, note)
    write_back = partial(write, message.id, typed)
    is_long = received.contents is not None and _is_long(received)
    size = len(received.serialized)
    return InferenceCall(path, message.model_name, message.model_version, read, write_back, is_long, typed, size)


def _is_long(received: ReceivedInfer) -> bool:
    """Whether decoding a large request blocks the loop for about a millisecond. Numbers in raw contents do not."""
    if len(received.serialized) >= _LONG_RAW_BYTES or received.num_fields > _MANY_FIELDS or not received.raw:
        return True
    return any(tensor.datatype == "BYTES" for tensor in received.message.inputs)


def _read(received: ReceivedInfer, call: Call, is_streamed: bool, note: Note | None) -> NamedRequest:
    message, decode = received.message, partial(_decode, received, call, is_streamed, note)
    # The call's deadline also bounds the wait for a load.
    return NamedRequest(message.model_name, message.model_version or None, decode, partial(earlier_ms, None, call))


def _decode(received: ReceivedInfer, call: Call, is_streamed: bool, note: Note | None, spec: ModelSpec) -> InferRequest:
    """Decode a ModelInferRequest. Raises InvalidInput, UnknownField."""
    request = check_request(parse_request(received, spec), spec)
    if note is not None:
        note(received.serialized, received.message.model_name, received.message.model_version, request)
    if is_streamed and request.generation is not None:
        request = request._replace(stream=wants_text_in_parts(request))
    timeout_ms = earlier_ms(request.timeout_ms, call)
    return request if timeout_ms == request.timeout_ms else request._replace(timeout_ms=timeout_ms)


def _write_response(
    request_id: str, typed: bool, record: RequestRecord, decoded: InferRequest, answer: Answer
) -> bytes:
    tensors = output_tensors(decoded, answer)
    return serialize_response(request_id, typed, tensors, record.answered_name, record.version, {})


def _write_last_response(
    request_id: str, typed: bool, record: RequestRecord, decoded: InferRequest, answer: Answer
) -> bytes:
    return _stream_response(request_id, typed, output_tensors(decoded, answer), record, is_last=True)


def _stream_response(
    request_id: str, typed: bool, tensors: list[OutputTensor], record: RequestRecord, is_last: bool
) -> bytes:
    parameters = {_FINAL: is_last}
    return serialize_stream_response(
        serialize_response(request_id, typed, tensors, record.answered_name, record.version, parameters)
    )


def _completed() -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
