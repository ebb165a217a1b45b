"""Share the form of errors and of decoded requests between the codecs of this package."""

from dataclasses import dataclass
from typing import Any

import orjson

from app.inference.contract import NamedRequest
from app.protocols.shared.bodies import Body, Priority, ResponseBody, TimeoutMs
from app.protocols.shared.codec import JsonCodec, StreamWriter, Target
from app.protocols.shared.errors import ErrorReply


class SearchBody(Body):
    """Fields of every body."""

    priority: Priority = None
    timeout_ms: TimeoutMs = None


class SearchErrorDetail(ResponseBody):
    """The error: its code, and a message with the field, the expected value and the remedy."""

    code: str
    message: str
    request_id: str


class SearchErrorResponse(ResponseBody):
    """The body of every response with a status of 400 and above."""

    error: SearchErrorDetail


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """As DecodedRequest of app/inference/contract.py, for an operation. `form`: how the response is written."""

    request: Any
    priority: int
    timeout_ms: int | None
    form: Any = None
    spec: None = None
    stream: bool = False


class SearchCodec(JsonCodec):
    """As Codec of app/protocols/shared/codec.py, without `encode`. An operation answers: no model is named."""

    __slots__ = ()

    def read(self, body: bytes, target: Target) -> NamedRequest:
        return NamedRequest(None, None, lambda _: self.decode(body, target))

    def decode(self, body: bytes, target: Target) -> OperationRequest:
        """Decode a whole body. Raises InvalidJson, InvalidInput, UnknownField."""
        raise NotImplementedError

    def stream_writer(self, decoded: Any, context: Any) -> StreamWriter:
        raise AssertionError("these responses are not streamed")

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return orjson.dumps({"error": {"code": error.code, "message": error.message, "request_id": request_id}})
