"""The codec of every route of Text Embeddings Inference (TEI): its form of errors, and the fields that it refuses."""

from dataclasses import dataclass

import orjson

from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.policy import FieldPolicy, Refusal

POLICY = FieldPolicy({"prompt_name": Refusal("put the prompt before each text")})
"""Refused fields of most routes."""


@dataclass(frozen=True, slots=True)
class TeiCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        error = self.renamed(error)
        return orjson.dumps({"error": error.message, "error_type": _type_of(error)})


def _type_of(error: ErrorReply) -> str:
    if error.code in ("overloaded", "quota_exceeded"):
        return "Overloaded"
    if error.status == 503:
        return "Unhealthy"
    return "Backend" if error.status >= 500 else "Validation"
