"""Write errors in the protocol's form, `{"error": "message"}`."""

import orjson
from pydantic import Field

from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.errors import ErrorReply


class OpenInferenceErrorResponse(ResponseBody):
    """The body of every response below /v2 whose status is not 200."""

    error: str = Field(description="Names the field, the expected value and the remedy.")


def error_body(error: ErrorReply) -> bytes:
    """Write the message alone. The status line has the status, and the header x-request-id the request id."""
    return orjson.dumps({"error": error.message})
