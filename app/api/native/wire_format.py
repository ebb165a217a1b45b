"""The native format: what /infer and its path forms are asked and answer."""

import orjson

from app.api.native.decode import NativeRequest, decode
from app.api.native.encode import encode
from app.api.native.fields import ErrorResponse, InferRequest, InferResponse
from app.api.native.stream import NativeStream
from app.api.routes import Route, RouteText
from app.api.wire_format import AnswerContext, JsonFormat
from frameworks.generation.types import GenerateRequest


class NativeFormat(JsonFormat):
    """The WireFormat of ROUTES."""

    decode = staticmethod(decode)
    encode = staticmethod(encode)

    def stream_writer(self, native: NativeRequest, context: AnswerContext) -> NativeStream:
        assert isinstance(native.request, GenerateRequest)
        return NativeStream(native.request.num_choices, context.request_id)

    def error_body(self, status: int, code: str, message: str, request_id: str) -> bytes:
        return orjson.dumps({"error": {"code": code, "message": message, "request_id": request_id}})


_FORMAT = NativeFormat()
_TEXT = RouteText(
    "infer", "Run a model on tensors, texts or a prompt", InferRequest, InferResponse, ErrorResponse, streams=True
)
ROUTES = tuple(
    Route(path, _FORMAT, _TEXT)
    for path in ("/infer", "/inference", "/models/{name}/infer", "/models/{name}/versions/{version}/infer")
)
