"""The codec of both routes of Anthropic's API: its form of errors and its header of the request id."""

from dataclasses import dataclass
from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.codec import AnswerContext, EncodedResponse
from app.protocols.shared.errors import ErrorReply

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
# The same request may succeed later.
_LATER = frozenset({"overloaded", "loading", "draining"})


@dataclass(frozen=True, slots=True)
class AnthropicCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    id_header = b"request-id"

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> EncodedResponse:
        body = self.write(decoded, answer, context)
        assert isinstance(body, bytes)
        headers = [(self.id_header, context.request_id.encode()), *self.headers_of(decoded)]
        return EncodedResponse(body, b"application/json", headers)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(self.renamed(error), request_id)


def error_body(error: ErrorReply, request_id: str) -> bytes:
    """Write Anthropic's error body."""
    content = {"type": _type_of(error), "message": error.message}
    return orjson.dumps({"type": "error", "error": content, "request_id": request_id})


def _type_of(error: ErrorReply) -> str:
    if error.code in _LATER:
        return "overloaded_error"
    return _ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
