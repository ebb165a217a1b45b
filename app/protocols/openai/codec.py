"""The codec of every route of the OpenAI API: OpenAI's form of errors."""

import re
from dataclasses import dataclass

import orjson

from app.protocols.shared.body_codec import BodyCodec, BodyRequest
from app.protocols.shared.errors import ErrorReply

OpenAiRequest = BodyRequest

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_PARAM = re.compile(r"[^\s:]+")


@dataclass(frozen=True, slots=True)
class OpenAiCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(self.renamed(error))


def error_body(error: ErrorReply) -> bytes:
    """Write OpenAI's error body; `param` is the wrong field."""
    content = {
        "message": error.message,
        "type": _ERROR_TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error"),
        "param": error.field if error.field and _PARAM.fullmatch(error.field) else None,
        "code": error.code,
    }
    return orjson.dumps({"error": content})
