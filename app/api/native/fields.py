"""The fields of a request to /infer: what each is for, which of them belong together, and which are still to come.

The pydantic models are the OpenAPI document's; a request itself is read by `decode`, from the tables below them.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

QUESTION_FIELDS = ("input_data", "inputs", "text")
"""Exactly one of these is in a request."""

OPTIONS: dict[str, frozenset[str]] = {
    "input_data": frozenset({"batch_size", "outputs"}),
    "inputs": frozenset({"outputs"}),
    "text": frozenset({"normalize", "truncate", "top_k"}),
}
"""The options that each question takes, besides `model_name` and `version`."""

COMMON_FIELDS = frozenset({"model_name", "version", "priority", "timeout_ms"})
"""What goes with every question."""

FIELDS = COMMON_FIELDS.union(QUESTION_FIELDS, *OPTIONS.values())

FIELDS_TO_COME = frozenset(
    {
        *("prompt", "messages", "max_tokens", "temperature", "top_p", "min_p", "repetition_penalty", "stop", "seed"),
        *("stream", "n", "logprobs"),
    }
)
"""In the contract, and refused by name until they do what they say."""


class InferRequest(BaseModel):
    """Exactly one of `input_data`, `inputs` and `text`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_name: str | None = Field(None, description="Which model; may be left out where the path names it.")
    version: str | None = Field(None, description="The version that is loaded.")
    input_data: Any = Field(
        None,
        description="The tensor of a model with exactly one required input: nested, or flat and then reshaped to the "
        "declared shape (one free dimension is solved from the count; with several, batch_size fixes the first).",
        examples=[[[0.0, 0.5, 1.0]]],
    )
    batch_size: int | None = Field(None, ge=1, description="How many rows a flat input_data holds.")
    inputs: dict[str, Any] | None = Field(
        None,
        description='Named tensors: nested arrays, or {"data", "shape", "dtype"} with flat or nested data.',
        examples=[{"image": {"data": [0.0, 0.5, 1.0], "shape": [1, 3], "dtype": "float32"}}],
    )
    outputs: list[str] | None = Field(None, description="Only these outputs are returned; with input_data at most one.")
    text: str | list[str] | None = Field(None, description="A text or a list of texts, for embed and classify models.")
    normalize: bool | None = Field(
        None, description="embed: L2-normalise; default as the model's own files say, else true."
    )
    truncate: bool | None = Field(None, description="Cut over-long texts at the model's limit; default true.")
    top_k: int | None = Field(None, ge=1, description="classify: how many labels per text; default all.")
    priority: int = Field(5, ge=1, le=9, description="Order in the queue: 1 is first; a request that waits moves up.")
    timeout_ms: int | None = Field(
        None, ge=1, description="Deadline for the whole request; what has not begun by then is never run."
    )


class NamedTensor(BaseModel):
    """One output of an answer to `inputs`."""

    dtype: str
    shape: list[int] | None
    data: Any


class Prediction(BaseModel):
    """One label of a text, with its probability."""

    label: str
    score: float


class InferResponse(BaseModel):
    """The answer mirrors the question; only the fields that belong to it are there."""

    model_config = ConfigDict(protected_namespaces=())

    model_name: str
    version: str
    latency_ms: float
    output_data: Any = Field(None, description="To input_data: flat for a flat question, nested for a nested one.")
    output_shape: list[int] | None = Field(None, description="To input_data.")
    outputs: dict[str, NamedTensor] | None = Field(None, description="To inputs.")
    embeddings: list[list[float]] | None = Field(
        None, description="To text, of an embed model: one vector per text, in order."
    )
    tokens: int | None = Field(None, description="To text, of an embed model: how many tokens were read.")
    predictions: list[list[Prediction]] | None = Field(
        None, description="To text, of a classify model: per text its labels by falling score."
    )


class ErrorDetail(BaseModel):
    """What was wrong, and what would be right."""

    code: str
    message: str
    request_id: str


class ErrorResponse(BaseModel):
    """The body of every answer with a status of 400 and above."""

    error: ErrorDetail
