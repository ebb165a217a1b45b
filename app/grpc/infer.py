"""ModelInfer and ModelStreamInfer."""

import asyncio
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from app.grpc.call import Call, GrpcError
from app.grpc.handler import GrpcHandler, Question
from app.grpc.messages import INFERENCE_SERVICE, Message, ModelInferRequest, ModelStreamInferResponse, parse
from app.grpc.tensors import read_question, response_of
from app.inference.pipeline import FindSpec
from app.observability.metrics import RequestRecord
from app.protocols.codec import LONG_BYTES
from app.protocols.open_inference.infer_request import read_request
from app.protocols.open_inference.infer_response import output_tensors
from app.protocols.open_inference.infer_types import InferRequest, OutputTensor, ParsedRequest
from app.protocols.open_inference.signature import GENERATED_OUTPUT, STREAM_INPUT
from frameworks.generation.types import Generation
from frameworks.types import Answer

_INFER = f"/{INFERENCE_SERVICE}/ModelInfer"
_STREAM_INFER = f"/{INFERENCE_SERVICE}/ModelStreamInfer"
# Of one stream: requests under way at once, and responses that its reader has not taken yet.
_MOST_AT_ONCE = 64
_MOST_UNREAD = 64
_FINAL = "triton_final_response"
"""The parameter that tells a stream's client whether more follows to the same request."""

Write = Callable[[RequestRecord, InferRequest, Any], bytes]


class InferCalls:
    """Owned by the event loop."""

    def __init__(self, asking: GrpcHandler) -> None:
        self._asking = asking

    async def model_infer(self, request: bytes, call: Call) -> bytes:
        message = parse(ModelInferRequest, request)
        question = _question(_INFER, message, len(request), call, partial(_whole, message))
        response: bytes = await self._asking.ask(question, call)
        return response

    async def model_stream_infer(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        """Tensors are answered in the order of their requests; the pieces of texts come when they are there."""
        stream = _Stream(self._asking, call)
        reading = asyncio.create_task(stream.read(requests))
        try:
            while (response := await stream.responses.get()) is not None:
                if isinstance(response, GrpcError):
                    raise response
                yield response
        except CancelledError:
            if not self._asking.pipeline.lifecycle.is_draining:
                raise
            raise GrpcError("UNAVAILABLE", "the server is going down; ask another") from None
        finally:
            reading.cancel()
            with suppress(CancelledError):
                await reading


class _Stream:
    """One ModelStreamInfer call."""

    def __init__(self, asking: GrpcHandler, call: Call) -> None:
        self._asking = asking
        self._call = call
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        # A reader that is behind holds up the texts that are written for it, and then its requests.
        self.responses: asyncio.Queue[bytes | GrpcError | None] = asyncio.Queue(_MOST_UNREAD)
        """Ends with None, or with the error that ends the call."""

    async def read(self, requests: AsyncIterator[bytes]) -> None:
        """Asks all that comes."""
        tasks: set[asyncio.Task[None]] = set()
        end: GrpcError | None = None
        before = _done()
        try:
            try:
                async for request in requests:
                    await self._room.acquire()
                    message = parse(ModelInferRequest, request)
                    after = asyncio.get_running_loop().create_future()
                    task = asyncio.create_task(self._ask(message, len(request), before, after))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    before = after
            except GrpcError as error:
                end = error
            await asyncio.gather(*tasks)
            await self.responses.put(end)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(
        self, message: Message, size: int, before: asyncio.Future[None], after: asyncio.Future[None]
    ) -> None:
        """`before` is done when the request before this one has been answered, `after` when this one has."""
        question = _question(_STREAM_INFER, message, size, self._call, partial(_last, message), in_pieces=True)
        try:
            response: bytes | None = await self._asking.ask(
                question, self._call, partial(self._send_pieces, message, after)
            )
            await before
        except GrpcError as error:
            failed = ModelStreamInferResponse(error_message=error.message)
            failed.infer_response.id = message.id
            failed.infer_response.model_name = message.model_name
            response = failed.SerializeToString()
        finally:
            self._room.release()
            if not after.done():
                after.set_result(None)
        if response is not None:
            await self.responses.put(response)

    async def _send_pieces(
        self,
        message: Message,
        after: asyncio.Future[None],
        record: RequestRecord,
        decoded: InferRequest,
        generation: Generation,
    ) -> None:
        # Others do not wait for the end of a text.
        after.set_result(None)
        async for piece in generation:
            text = np.array([piece.text], dtype=object)
            tensors = [OutputTensor(GENERATED_OUTPUT, "BYTES", text)]
            is_last = piece.finish_reason is not None
            await self.responses.put(_stream_response(message, tensors, record, is_last))


def _question(path: str, message: Message, size: int, call: Call, write: Write, in_pieces: bool = False) -> Question:
    # The raw contents of tensors are not looked through: only typed ones take long.
    is_typed = not message.raw_input_contents
    decode = partial(_decode, message, call, in_pieces)
    is_long = is_typed and size >= LONG_BYTES
    return Question(path, message.model_name, message.model_version, decode, write, is_long, is_typed)


def _decode(message: Message, call: Call, in_pieces: bool, find_spec: FindSpec) -> InferRequest:
    """Raises InvalidInput, UnknownField, and what `find_spec` raises."""
    spec = find_spec(message.model_name, message.model_version or None, lambda: _sooner_ms(None, call))
    question = read_question(message)
    request = read_request(question, spec)
    if in_pieces and spec.generation is not None:
        request = request._replace(stream=_wants_pieces(question, request))
    timeout_ms = _sooner_ms(request.timeout_ms, call)
    return request if timeout_ms == request.timeout_ms else request._replace(timeout_ms=timeout_ms)


def _wants_pieces(question: ParsedRequest, request: InferRequest) -> bool:
    """In a stream a text comes in pieces, unless its caller says otherwise."""
    return request.stream or all(tensor.name != STREAM_INPUT for tensor in question.inputs)


def _sooner_ms(timeout_ms: float | None, call: Call) -> float | None:
    """The request's own deadline, or the call's."""
    left_s = call.left_s
    if left_s is None:
        return timeout_ms
    left_ms = max(left_s * 1e3, 0.001)
    return left_ms if timeout_ms is None else min(timeout_ms, left_ms)


def _whole(message: Message, record: RequestRecord, decoded: InferRequest, answer: Answer) -> bytes:
    response = response_of(message, output_tensors(decoded, answer), record.model, record.version, {})
    serialized: bytes = response.SerializeToString()
    return serialized


def _last(message: Message, record: RequestRecord, decoded: InferRequest, answer: Answer) -> bytes:
    return _stream_response(message, output_tensors(decoded, answer), record, is_last=True)


def _stream_response(message: Message, tensors: list[OutputTensor], record: RequestRecord, is_last: bool) -> bytes:
    response = response_of(message, tensors, record.model, record.version, {_FINAL: is_last})
    serialized: bytes = ModelStreamInferResponse(infer_response=response).SerializeToString()
    return serialized


def _done() -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
