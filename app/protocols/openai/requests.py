"""Request bodies of the OpenAI API. Each class validates its body, and OpenAPI shows its schema.

Not in these classes: the fields that `field_policy.py` refuses, and the rules between fields that each route checks.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from app.protocols.bodies import MAX_INT32, Body, OnlyFalse, Priority, TimeoutMs
from app.protocols.constraint_fields import ConstraintFields, StructuredOutputs
from app.protocols.generation_fields import (
    MAX_MESSAGES,
    ChatMessage,
    MaxTokens,
    NumChoices,
    SamplingFields,
    StoppingFields,
    Stream,
    TokenId,
    TopLogprobs,
)
from app.protocols.openai.field_policy import plain_messages
from app.protocols.text_fields import MAX_TEXTS, Dimensions, Texts, Truncate
from frameworks.engine.generation import MAX_SEQUENCES

MAX_TOKENS_DECODED = 131_072
_MAX_COMPLETION_LOGPROBS = 5

_DOCUMENT_FIELDS = frozenset({"text"})

_Label = Annotated[Any, Field(description="Accepted without effect.")]
_TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_MaxTexts = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
_MaxPrompts = Field(min_length=1, max_length=MAX_SEQUENCES, fail_fast=True)


class RequestBody(Body):
    """Fields of every route."""

    model: str = Field(min_length=1, description="Name of the model, as GET /v1/models lists it.")
    priority: Priority = None
    timeout_ms: TimeoutMs = None


class StreamOptions(Body):
    """Options of a streamed response."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"include_usage": True}]})

    include_usage: bool | None = Field(None, description="Send the usage before [DONE].")
    include_obfuscation: OnlyFalse | None = None


class GenerationBody(ConstraintFields, StoppingFields, SamplingFields, RequestBody):
    """Fields of both routes of text generation."""

    n: NumChoices = 1
    stream: Stream = False
    stream_options: StreamOptions | None = Field(None, description="Only for a streamed response.")
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's names of the constraints.")
    user: _Label = None
    safety_identifier: _Label = None
    prompt_cache_key: _Label = None
    metadata: _Label = None


class CompletionsRequest(GenerationBody):
    """Prompts to continue. Omitted `max_tokens`: 16."""

    prompt: str | Annotated[list[str], _MaxPrompts] | _TokenIds | Annotated[list[_TokenIds], _MaxPrompts] = Field(
        description="A text, token ids, or a list of either.", examples=["Once upon a time"]
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=_MAX_COMPLETION_LOGPROBS,
        description="Report the log probability of each token and of this number of most likely tokens.",
    )


OpenAiMessages = Annotated[
    list[ChatMessage],
    Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        description="The role `developer` is read as `system`.",
    ),
    BeforeValidator(plain_messages),
]


class ChatRequest(GenerationBody):
    """A conversation to continue."""

    messages: OpenAiMessages
    max_completion_tokens: MaxTokens = Field(
        None, description="Newer name of max_tokens. Default: up to the end of the model's context."
    )
    logprobs: bool | None = Field(False, description="Report the log probability of each token.")
    top_logprobs: TopLogprobs = None


class EmbeddingsRequest(RequestBody):
    """Texts to embed, for any embed model."""

    input: str | Annotated[list[str], _MaxTexts] | _TokenIds | Annotated[list[_TokenIds], _MaxTexts] = Field(
        description="A text or a list of texts. Token ids are refused unless the model's entry has token_ids.",
        examples=["Bread rises overnight."],
    )
    encoding_format: Literal["float", "base64"] | None = Field("float", description="base64: float32, little-endian.")
    dimensions: Dimensions = None
    truncate: Truncate = True
    user: _Label = None


class RerankDocument(Body):
    """A document as an object."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "…"}]})

    text: str


def _to_plain_documents(documents: Any) -> Any:
    """Replace the objects of a list by their texts, as pydantic validates thousands of objects in one long call."""
    if not isinstance(documents, list):
        return documents
    return [
        each["text"] if type(each) is dict and each.keys() == _DOCUMENT_FIELDS and type(each["text"]) is str else each
        for each in documents
    ]


class RerankRequest(RequestBody):
    """Documents to rank by their relevance to a query."""

    query: str
    documents: Annotated[
        str | Annotated[list[str | RerankDocument], Field(max_length=MAX_TEXTS, fail_fast=True)],
        BeforeValidator(_to_plain_documents),
    ]
    top_n: int | None = Field(None, ge=1, le=MAX_INT32, description="Number of best documents. Default: all.")
    return_documents: bool | None = Field(False, description="Repeat the documents in the response.")
    truncate: Truncate = True
    user: _Label = None


class ScoreRequest(RequestBody):
    """Pairs of texts to score: one text with each of several, or two lists of equal length."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = Field(None, description="Another name of text_1.")
    documents: Texts | None = Field(None, description="Another name of text_2.")
    truncate: Truncate = True
    user: _Label = None


class TokenizeRequest(RequestBody):
    """A text, or a conversation, which the model's chat template formats."""

    prompt: str | None = None
    messages: OpenAiMessages | None = None
    add_special_tokens: bool | None = Field(
        None, description="Add the special tokens of the model's files around a prompt. Default: true."
    )
    return_token_strs: bool | None = Field(False, description="Return the text of each token.")


class DetokenizeRequest(RequestBody):
    """Token ids."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS_DECODED, fail_fast=True)]
