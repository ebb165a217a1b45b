"""The codec of every route of Cohere's API: its form of errors."""

from dataclasses import dataclass
from typing import Any

import orjson

from app.protocols.body_codec import BodyCodec
from app.protocols.errors import ErrorReply


@dataclass(frozen=True, slots=True)
class CohereCodec(BodyCodec):
    """As Codec of app/protocols/codec.py."""

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return orjson.dumps({"id": request_id, "message": self.renamed(error).message})


def meta(**billed_units: int) -> dict[str, Any]:
    """Return `meta` of a response. `billed_units`: the counts of the request."""
    return {"api_version": {"version": "2"}, "billed_units": billed_units}
