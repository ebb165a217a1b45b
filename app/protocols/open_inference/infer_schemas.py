"""What the OpenAPI document says of infer; requests are read by json_questions."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.protocols.open_inference.datatypes import DTYPES

_DATATYPE = Field(description=f"One of {', '.join(DTYPES)}.", examples=["FP32"])


class OpenInferenceInput(BaseModel):
    """A tensor, in JSON or in bytes behind it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(examples=["image"])
    shape: list[int] = Field(examples=[[1, 3]])
    datatype: str = _DATATYPE
    data: list[Any] | None = Field(
        None,
        description="Flat, or nested as the shape says. FP16 and BF16 travel in bytes only.",
        examples=[[0, 0.5, 1]],
    )
    parameters: dict[str, Any] | None = Field(
        None, description="binary_data_size: how many of the bytes behind the JSON are this tensor's, instead of data."
    )


class OpenInferenceOutput(BaseModel):
    """An output that is wanted."""

    model_config = ConfigDict(extra="forbid")

    name: str
    parameters: dict[str, Any] | None = Field(
        None,
        description="binary_data: as bytes behind the JSON. classification: of each row so many of the highest, as "
        '"value:index" or "value:index:label".',
    )


class OpenInferenceRequest(BaseModel):
    """JSON; or, with the header inference-header-content-length, so many bytes of it and then those of the tensors that
    have a binary_data_size, one after the other; with 0 there, the bytes of the model's one input and nothing else.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    id: str | None = Field(None, description="Repeated in the answer.")
    inputs: list[OpenInferenceInput]
    outputs: list[OpenInferenceOutput] | None = Field(None, description="Only these are answered, in this order.")
    parameters: dict[str, Any] | None = Field(
        None,
        description="priority: 1 (first) to 9, 0 for the default. timeout: microseconds. binary_data_output: all "
        "outputs as bytes. Embed models: normalize, truncate, dimensions. Models that generate: max_tokens and the "
        "like. Others change nothing.",
    )
    model_name: str | None = Field(None, description="The path names the model; this says nothing.")
    model_version: str | None = Field(None, description="As model_name.")


class OpenInferenceTensor(BaseModel):
    """An output. `data` is flat; NaN and infinities are null."""

    name: str
    datatype: str = _DATATYPE
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="binary_data_size: how many of the bytes behind the JSON are this tensor's."
    )


class OpenInferenceResponse(BaseModel):
    """JSON; where tensors are in bytes, the header inference-header-content-length says where they begin."""

    model_config = ConfigDict(protected_namespaces=())

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OpenInferenceTensor]
