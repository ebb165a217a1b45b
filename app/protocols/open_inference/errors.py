"""What is wrong, in the Open Inference Protocol's body: `{"error": "message"}`."""

import orjson
from pydantic import BaseModel, Field


class OpenInferenceErrorResponse(BaseModel):
    """The body of every answer below /v2 that is not 200."""

    error: str = Field(description="What was wrong, and what would be right.")


def error_body(status: int, code: str, message: str, request_id: str) -> bytes:
    """As Codec.error_body. The protocol has the message alone: status and code ride in the status line, the
    request id in the header x-request-id.
    """
    return orjson.dumps({"error": message})
