"""The native format: what /infer and its path forms are asked and answer."""

import orjson

from app.protocols.codec import AnswerContext, JsonCodec
from app.protocols.errors import ErrorReply
from app.protocols.native.decode import NativeRequest, decode
from app.protocols.native.encode import encode
from app.protocols.native.fields import ErrorResponse, InferRequest, InferResponse
from app.protocols.native.stream import NativeStream
from app.protocols.routes import Route, RouteDescription
from frameworks.generation.types import GenerateRequest


class NativeCodec(JsonCodec):
    """The Codec of ROUTES."""

    decode = staticmethod(decode)
    encode = staticmethod(encode)

    def stream_writer(self, native: NativeRequest, context: AnswerContext) -> NativeStream:
        assert isinstance(native.request, GenerateRequest)
        return NativeStream(native.request.num_choices, context.request_id)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return orjson.dumps({"error": {"code": error.code, "message": error.message, "request_id": request_id}})


_FORMAT = NativeCodec()
_TEXT = RouteDescription(
    "infer", "Run a model on tensors, texts or a prompt", InferRequest, InferResponse, ErrorResponse, streams=True
)
ROUTES = tuple(
    Route(path, _FORMAT, _TEXT)
    for path in ("/infer", "/inference", "/models/{name}/infer", "/models/{name}/versions/{version}/infer")
)
