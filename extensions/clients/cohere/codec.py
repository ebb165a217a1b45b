"""The codec of every route of Cohere's API: its form of errors."""

from dataclasses import dataclass
from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyCodec, BodyRequest
from app.protocols.shared.errors import ErrorReply
from frameworks.images.spec import ImageRequest


@dataclass(frozen=True, slots=True)
class CohereCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def is_long_to_write(self, decoded: BodyRequest, answer: Any) -> bool:
        # The answer describes the images: a header may have thousands of parts, which are read in Python.
        return isinstance(decoded.request, ImageRequest) or BodyCodec.is_long_to_write(self, decoded, answer)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return orjson.dumps({"id": request_id, "message": self.renamed(error).message})


def meta(**billed_units: int) -> dict[str, Any]:
    """Return `meta` of a response. `billed_units`: the counts of the request."""
    return {"api_version": {"version": "2"}, "billed_units": billed_units}
