"""Describe the bodies of inference requests and responses for OpenAPI, and write errors as the protocol has them.

`infer_body` decodes the requests by hand, for speed; a property test holds these schemas to it.
"""

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from app.protocols.shared.bodies import Body, ResponseBody
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.json.shapes import MAX_RANK

# fmt: off
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
]
# fmt: on
_DATATYPE = Field(examples=["FP32"])


class OpenInferenceInput(Body):
    """A tensor, in JSON or in bytes behind it."""

    name: str = Field(examples=["image"])
    shape: list[Annotated[int, Field(ge=0)]] = Field(max_length=MAX_RANK, examples=[[1, 3]])
    datatype: Datatype = _DATATYPE
    data: list[Any] | None = Field(
        None,
        description="Flat, or nested in the given shape. FP16 and BF16 need binary data.",
        examples=[[0, 0.5, 1]],
    )
    parameters: dict[str, Any] | None = Field(
        None, description="binary_data_size: the number of this tensor's bytes behind the JSON, instead of data."
    )


class OpenInferenceOutput(Body):
    """A requested output."""

    name: str
    parameters: dict[str, Any] | None = Field(
        None,
        description="binary_data: return the bytes behind the JSON. classification: return this many of the highest "
        'values of each row, as "value:index" or "value:index:label".',
    )


class OpenInferenceRequest(Body):
    """JSON. With the header inference-header-content-length, JSON of that length and then the bytes of the tensors that
    have a binary_data_size, one after the other. With the length 0, only the bytes of the model's one input.
    """

    id: str | None = Field(None, description="Repeated in the response.")
    inputs: list[OpenInferenceInput]
    outputs: list[OpenInferenceOutput] | None = Field(None, description="Return only these, in this order.")
    parameters: dict[str, Any] | None = Field(
        None,
        description="priority: 1 (first) to 9, 0 for the default. timeout: microseconds. binary_data_output: all "
        "outputs as bytes. Embed models: normalize, truncate, dimensions. Generation models: max_tokens and the other "
        "options of generate. Unknown parameters have no effect.",
    )
    model_name: Any = Field(None, description="Ignored; the path names the model.")
    model_version: Any = Field(None, description="Ignored; the path names the version.")


class OpenInferenceTensor(ResponseBody):
    """An output. `data` is flat; NaN and infinities are null."""

    name: str
    datatype: Datatype = _DATATYPE
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="binary_data_size: the number of this tensor's bytes behind the JSON."
    )


class OpenInferenceResponse(ResponseBody):
    """JSON. With binary tensors, the header inference-header-content-length gives the length of the JSON."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OpenInferenceTensor]


class OpenInferenceErrorResponse(ResponseBody):
    """The body of every response below /v2 whose status is not 200."""

    error: str = Field(description="Names the field, the expected value and the remedy.")


def error_body(error: ErrorReply) -> bytes:
    """Write the message alone. The status line has the status, and the header x-request-id the request id."""
    return orjson.dumps({"error": error.message})
