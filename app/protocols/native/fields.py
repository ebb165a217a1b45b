"""The fields of a request to /infer: what each is for, and which of them belong together.

The pydantic models are the OpenAPI document's; a request itself is read by `decode`, from the tables below them.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.protocols.constraint_fields import CONSTRAINT_FIELDS
from app.protocols.generation_fields import SAMPLING_FIELDS, STOPPING_FIELDS

GENERATION_INPUTS = frozenset({"prompt", "messages"})
INPUT_FIELDS = ("input_data", "inputs", "text", "prompt", "messages")
"""Exactly one of these is in a request."""

GENERATION_FIELDS = SAMPLING_FIELDS | STOPPING_FIELDS | CONSTRAINT_FIELDS | {"n", "logprobs", "stream"}
"""The options of `prompt` and `messages`."""

OPTIONS: dict[str, frozenset[str]] = {
    "input_data": frozenset({"batch_size", "outputs"}),
    "inputs": frozenset({"outputs"}),
    "text": frozenset({"normalize", "truncate", "top_k"}),
    "prompt": GENERATION_FIELDS,
    "messages": GENERATION_FIELDS,
}
"""The options that each question takes, besides `model_name` and `version`."""

COMMON_FIELDS = frozenset({"model_name", "version", "priority", "timeout_ms"})
"""What goes with every question."""

FIELDS = COMMON_FIELDS.union(INPUT_FIELDS, *OPTIONS.values())


class ChatMessage(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(examples=["user"])
    content: str | list[dict[str, str]] = Field(description='A text, or parts like {"type": "text", "text": "…"}.')


class InferRequest(BaseModel):
    """Exactly one of `input_data`, `inputs`, `text`, `prompt` and `messages`."""

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
    top_k: int | None = Field(
        None,
        ge=-1,
        description="classify: how many labels per text, 1 or more; default all. Generation: only the likeliest so "
        "many tokens are drawn from, 0 or -1 for all; default as the model's own files say.",
    )
    prompt: str | None = Field(None, description="The text to go on from, for models that generate text.")
    messages: list[ChatMessage] | None = Field(
        None, description="A conversation, for models that generate text and have a chat template."
    )
    max_tokens: int = Field(256, ge=1, description="Tokens of each text at most; the model's context ends it too.")
    temperature: float | None = Field(
        None, ge=0, le=100, description="0: always the likeliest token. Default as the model's own files say, else 1."
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Only the likeliest tokens that together have this probability are drawn from; default as top_k's.",
    )
    min_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Only tokens with this share of the likeliest's probability are drawn from; default as top_k's.",
    )
    repetition_penalty: float | None = Field(
        None,
        ge=0.01,
        le=100,
        description="Above 1: tokens of prompt and text become less likely. Default as top_k's.",
    )
    frequency_penalty: float = Field(0, ge=-2, le=2, description="Off a token's logit for each time it has come.")
    presence_penalty: float = Field(0, ge=-2, le=2, description="Off a token's logit when it has come.")
    logit_bias: dict[str, float] | None = Field(
        None, description="Token id → what is added to its logit, -100 to 100; at most 1024."
    )
    stop: str | list[str] | None = Field(
        None, description="A string or at most 16, of 1 to 1024 characters: the text ends before the first that comes."
    )
    stop_token_ids: list[int] | None = Field(None, description="At most 1024: the text ends before any of them.")
    min_tokens: int = Field(0, ge=0, description="No end of text and no stop token before so many tokens.")
    ignore_eos: bool = Field(False, description="The text goes on past the model's end of text.")
    seed: int | None = Field(None, ge=0, description="The same seed gives the same text; default another each time.")
    n: int = Field(1, ge=1, le=128, description="How many texts; more than one come as choices.")
    logprobs: int | bool | None = Field(
        None,
        description="Log probabilities of the tokens, and of so many likeliest ones in each place: 0 (or true) to 20.",
    )
    stream: bool = Field(False, description="Server-sent events: the text in pieces as it comes.")
    regex: str | None = Field(None, description="The whole text fits this pattern. At most one constraint.")
    choice: list[str] | None = Field(None, description="The text is one of these.")
    json_schema: dict[str, Any] | bool | None = Field(None, description="The text is JSON of this schema; true: any.")
    response_format: dict[str, Any] | None = Field(
        None,
        description='As OpenAI\'s: {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": '
        '{"schema": …}}.',
    )
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


class TokenLogprob(BaseModel):
    """The log probability of one token in the model's own eyes, before temperature and the like; null: impossible."""

    token: str
    token_id: int
    logprob: float | None


class ChosenToken(TokenLogprob):
    """A token of the text, and the likeliest ones in its place by falling probability."""

    top: list[TokenLogprob]


class GeneratedChoice(BaseModel):
    """One of several texts."""

    index: int
    text: str
    finish_reason: str
    logprobs: list[ChosenToken] | None = None


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
    text: str | None = Field(None, description="To prompt and messages.")
    finish_reason: Literal["stop", "length"] | None = Field(
        None, description="To prompt and messages. stop: the text came to its end; length: max_tokens or the context."
    )
    logprobs: list[ChosenToken] | None = Field(None, description="To prompt and messages, where logprobs asks for it.")
    choices: list[GeneratedChoice] | None = Field(
        None, description="To prompt and messages with n above 1, instead of text, finish_reason and logprobs."
    )
    tokens_generated: int | None = Field(None, description="To prompt and messages: of all texts, their ends included.")
    prompt_tokens: int | None = Field(None, description="To prompt and messages.")


class ErrorDetail(BaseModel):
    """What was wrong, and what would be right."""

    code: str
    message: str
    request_id: str


class ErrorResponse(BaseModel):
    """The body of every answer with a status of 400 and above."""

    error: ErrorDetail
