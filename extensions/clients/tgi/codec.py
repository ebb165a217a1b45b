"""The codec of every route of Text Generation Inference (TGI): its form of errors, and the fields that it refuses."""

from dataclasses import dataclass

import orjson

from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal

PARAMETERS = FieldPolicy(
    {
        "adapter_id": Refusal("name the adapter in model, as base:adapter"),
        "best_of": Refusal("texts are not ranked: request several of /v1/completions by n", (1,)),
        "truncate": Refusal("a prompt is read whole: shorten it"),
        "typical_p": Refusal("send top_p or min_p", (1, 1.0)),
        "watermark": Refusal("texts have no watermark: omit the field", (False,)),
    }
)
"""Refused members of `parameters`."""
BODY = FieldPolicy({"options": Ignored(neutral=({},))})
"""Older clients of Hugging Face send options of its hub, as wait_for_model."""


@dataclass(frozen=True, slots=True)
class TgiCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(self.renamed(error))


def error_body(error: ErrorReply) -> bytes:
    """Write TGI's error body."""
    return orjson.dumps({"error": error.message, "error_type": _type_of(error)})


def _type_of(error: ErrorReply) -> str:
    if error.status in (429, 503):
        return "overloaded"
    return "generation" if error.status >= 500 else "validation"
