"""Request bodies of the OpenAI API. Each class validates its body, and OpenAPI shows its schema.

Not in these classes: the fields that `field_policy.py` refuses, and the rules between fields that each route checks.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf

from app.protocols.openai.image_messages import ImageMessages
from app.protocols.openai.messages import OpenAiMessages
from app.protocols.shared.bodies import MAX_INT32, Body, OnlyFalse, read_body
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.fields.constraints import ConstraintFields, StructuredField
from app.protocols.shared.fields.generation import (
    MaxTokens,
    NumChoices,
    SamplingFields,
    StoppingFields,
    Stream,
    TokenId,
    TopLogprobs,
)
from app.protocols.shared.fields.texts import MAX_TEXTS, Texts, TextsOrIds, Truncate, TruncationSide, truncation_of
from app.protocols.shared.tools import MAX_TOOLS
from frameworks.engine.generation_limits import MAX_SEQUENCES
from frameworks.types import Truncation

MAX_TOKENS_DECODED = 131_072
DEFAULT_COMPLETION_TOKENS = 16
_MAX_COMPLETION_LOGPROBS = 5

_DOCUMENT_FIELDS = frozenset({"text"})

_Label = Annotated[Any, Field(description="Accepted without effect.")]
_TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_MaxPrompts = Field(min_length=1, max_length=MAX_SEQUENCES, fail_fast=True)


class StreamPadding(Body):
    """Options of every streamed response. Chunks are not padded."""

    include_obfuscation: bool | None = Field(None, description="Accepted without effect.")


class StreamOptions(StreamPadding):
    """Options of a streamed response."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"include_usage": True}]})

    include_usage: bool | None = Field(None, description="Send the usage before [DONE].")
    continuous_usage_stats: bool | None = Field(None, description="Send the usage so far in every chunk.")


class GenerationBody(ConstraintFields, StoppingFields, SamplingFields, RequestBody):
    """Fields of both routes of text generation."""

    n: NumChoices = 1
    stream: Stream = False
    stream_options: StreamOptions | None = Field(None, description="Only for a streamed response.")
    structured_outputs: StructuredField = Field(None, description="vLLM's names of the constraints.")
    prompt_logprobs: TopLogprobs = Field(
        None,
        description="Report the log probability of each token of the prompt and of this number of most likely tokens.",
    )
    include_stop_str_in_output: bool | None = Field(False, description="A text that a stop string ends contains it.")
    return_tokens_as_token_ids: bool | None = Field(
        False, description="In log probabilities, write each token as token_id: and its id."
    )
    user: _Label = None
    safety_identifier: _Label = None
    prompt_cache_key: _Label = None
    session_id: _Label = None
    metadata: _Label = None


class CompletionsRequest(GenerationBody):
    """Prompts to continue. Omitted `max_tokens`: 16."""

    prompt: str | Annotated[list[str], _MaxPrompts] | _TokenIds | Annotated[list[_TokenIds], _MaxPrompts] = Field(
        description="A text, token ids, or a list of either.", examples=["Once upon a time"]
    )
    max_tokens: int | None = Field(
        None,
        ge=0,
        le=MAX_INT32,
        description=f"Maximum number of generated tokens, {DEFAULT_COMPLETION_TOKENS} by default. 0 with echo or "
        "prompt_logprobs: only the prompt is scored.",
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=_MAX_COMPLETION_LOGPROBS,
        description="Report the log probability of each token and of this number of most likely tokens.",
    )
    echo: bool | None = Field(
        False, description="Begin each text with its prompt; log probabilities then include those of the prompt."
    )
    suffix: str | None = Field(
        None, description="Text after the generated one, for models that fill in the middle of a text."
    )
    add_special_tokens: bool | None = Field(
        True, description="Add the special tokens of the model's files before a text."
    )


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionTool(Body):
    """A function as OpenAI describes it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "weather", "parameters": {"type": "object"}}]})

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(False, description="A call meets the schema even if the model need not call.")
    defer_loading: OnlyFalse | None = None


class ToolField(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionTool
    defer_loading: OnlyFalse | None = None


_Tools = Annotated[
    Annotated[list[ToolField], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
    Field(description="Functions that the model may call.", examples=[[]]),
]


_TemplateKwargs = Annotated[
    Annotated[dict[str, Any], Field(max_length=32)] | None,
    Field(
        description="Variables of the chat template. Those that it does not read are ignored.",
        examples=[{"enable_thinking": False}],
    ),
]


class PromptEndFields(Body):
    """Fields of vLLM that say where the prompt of a conversation ends."""

    add_generation_prompt: bool | None = Field(
        None, description="Begin the model's turn. Default: true, unless continue_final_message is true."
    )
    continue_final_message: bool | None = Field(
        False, description="Continue the last message, which is the assistant's, instead of beginning a turn."
    )


class NamedFunction(Body):
    """The name of a function."""

    name: FunctionName


class NamedTool(Body):
    """The tool that must be called."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "function", "function": {"name": "weather"}}]})

    type: Literal["function"] = Field("function", description="Omitted by clients of TGI.")
    function: NamedFunction


class ChatRequest(PromptEndFields, GenerationBody):
    """A conversation to continue."""

    messages: OpenAiMessages
    max_completion_tokens: MaxTokens = Field(
        None, description="Newer name of max_tokens. Default: up to the end of the model's context."
    )
    logprobs: bool | None = Field(False, description="Report the log probability of each token.")
    top_logprobs: TopLogprobs = None
    tools: _Tools = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        None, description="Whether the model calls a function. Default: auto with tools, else none.", examples=["auto"]
    )
    parallel_tool_calls: bool | None = Field(True, description="Whether a response may have several calls.")
    reasoning_effort: Effort | None = Field(
        None, description="Passed to a chat template that reads it; others ignore it.", examples=["none"]
    )
    chat_template_kwargs: _TemplateKwargs = None


class ConversationEndFields(Body):
    """As PromptEndFields, of conversations that are embedded."""

    add_generation_prompt: bool | None = Field(
        None, description="Begin the model's turn after messages. Default: as the model's files say."
    )
    continue_final_message: bool | None = Field(
        False, description="End within the last message, which is the assistant's and may be empty."
    )


class PoolingBody(RequestBody):
    """Fields of all routes for texts that generate nothing."""

    truncate: Truncate = True
    truncation: bool | None = Field(True, description="Another name of truncate.")
    truncation_side: TruncationSide = None
    truncation_direction: TruncationSide = None
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, le=MAX_INT32, description="-1 or 0, or at least the model's limit, which is the only one."
    )
    user: _Label = None

    @property
    def truncates(self) -> Truncation:
        """Whether texts are cut at the model's limit, and on which side."""
        is_cut = self.truncate is not False and self.truncation is not False
        return truncation_of(is_cut, self.truncation_side, self.truncation_direction)


_UseActivation = Annotated[bool | None, Field(description="false: return the logits of a classification model.")]
_RawScores = Annotated[bool | None, Field(description="true: return the logits of a classification model.")]
_TextsOrIds = Annotated[
    TextsOrIds,
    Field(
        description="A text or a list of texts. Token ids are refused unless the model's entry has token_ids.",
        examples=["Bread rises overnight."],
    ),
]
_EncodingFormat = Annotated[Literal["float", "base64"] | None, Field(description="base64: float32, little-endian.")]
_AnyDimensions = Annotated[
    int | None,
    Field(
        ge=0,
        le=MAX_INT32,
        description="Truncate the vectors to this size and normalise them, where the model supports it. 0: do not.",
    ),
]


class EmbeddingsRequest(ConversationEndFields, PoolingBody):
    """Texts or images to embed, for any embed model: `input` or `messages`."""

    input: _TextsOrIds | None = None
    messages: ImageMessages | None = None
    modality: Literal["text", "image"] | None = Field(
        None, description="image: input has images, base64 or data URLs, as Infinity has it."
    )
    encoding_format: _EncodingFormat = "float"
    dimensions: _AnyDimensions = None
    normalize: bool | None = Field(None, description="L2-normalise. Default: as the model's files say.")
    normalized: bool | None = Field(None, description="Jina's name of normalize.")
    use_activation: bool | None = Field(None, description="vLLM's name of normalize.")
    input_type: Literal["query", "document", "passage"] | None = Field(
        None, description="How a model with a Router reads the texts; passage: as document. Default: document."
    )

    @property
    def normalizes(self) -> bool | None:
        """Whether the vectors are normalised; None for the default of the model's files."""
        given = [each for each in (self.normalize, self.normalized, self.use_activation) if each is not None]
        return all(given) if given else None


class RerankDocument(Body):
    """A document as an object."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "…"}]})

    text: str


class ImageDocument(Body):
    """An image as a document, as Jina has it, for models that embed texts and images."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"image": "data:image/jpeg;base64,…"}]})

    image: str = Field(description="A data URL or base64.")


def _to_plain_documents(documents: Any) -> Any:
    """Replace the objects of a list by their texts, as pydantic validates thousands of objects in one long call.

    Others are built here, so that an error names their fields. Raises InvalidInput, UnknownField.
    """
    if not isinstance(documents, list):
        return documents
    return [_plain_document(each, index) if type(each) is dict else each for index, each in enumerate(documents)]


def _plain_document(document: dict[str, Any], index: int) -> Any:
    if document.keys() == _DOCUMENT_FIELDS and type(document["text"]) is str:
        return document["text"]
    kind = ImageDocument if "image" in document and "text" not in document else RerankDocument
    return read_body(kind, document, f"documents[{index}].")


class PairsBody(PoolingBody):
    """Fields of both routes for pairs of texts."""

    use_activation: _UseActivation = None
    raw_scores: _RawScores = None
    max_tokens_per_doc: int | None = Field(
        None, ge=0, le=MAX_INT32, description="0, or at least the model's limit, which is the only one."
    )
    max_tokens_per_query: int | None = Field(None, ge=0, le=MAX_INT32, description="As max_tokens_per_doc.")

    @property
    def raw(self) -> bool:
        """Whether the scores are logits."""
        return bool(self.raw_scores) or self.use_activation is False


class RerankRequest(PairsBody):
    """Documents to rank by their relevance to a query."""

    query: str
    documents: Annotated[
        str
        | Annotated[
            list[str | RerankDocument | InstanceOf[ImageDocument]], Field(max_length=MAX_TEXTS, fail_fast=True)
        ],
        BeforeValidator(_to_plain_documents),
    ]
    top_n: int | None = Field(None, ge=0, le=MAX_INT32, description="Number of best documents. Default, and 0: all.")
    top_k: int | None = Field(None, ge=0, le=MAX_INT32, description="Voyage's name of top_n.")
    return_documents: bool | None = Field(False, description="Repeat the documents in the response.")


class ScoreRequest(PairsBody):
    """Pairs of texts to score: one text with each of several, or two lists of equal length."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = Field(None, description="Another name of text_1.")
    documents: Texts | None = Field(None, description="Another name of text_2.")
    items: Texts | None = Field(None, description="Another name of text_2.")
    data_1: Texts | None = Field(None, description="Another name of text_1.")
    data_2: Texts | None = Field(None, description="Another name of text_2.")


class ClassifyRequest(PoolingBody):
    """Texts or images to classify: `input` or `messages`.

    With `raw_scores` the response is Infinity's, which has all labels; else vLLM's.
    """

    input: Texts | None = Field(None, description="A text or a list of texts.", examples=["Bread rises overnight."])
    messages: ImageMessages | None = None
    use_activation: _UseActivation = None
    raw_scores: _RawScores = None


class PoolingRequest(ConversationEndFields, PoolingBody):
    """Texts or images for an embedding or a classification model: `input` or `messages`."""

    input: _TextsOrIds | None = None
    messages: ImageMessages | None = None
    task: Literal["embed", "classify", "token_embed"] | None = Field(
        None,
        description="The task of the model; token_embed: of a model of late interaction. "
        "A model of sparse vectors returns a number for each token of its vocabulary.",
    )
    encoding_format: _EncodingFormat = "float"
    dimensions: _AnyDimensions = None
    use_activation: bool | None = Field(None, description="Normalise vectors; return probabilities. Default: true.")
    input_type: Literal["query", "document"] | None = Field(
        None, description="How a model of late interaction, or with a Router, reads the texts. Default: document."
    )


class TokenizeRequest(PromptEndFields, RequestBody):
    """A text, or a conversation, which the model's chat template formats."""

    prompt: str | None = None
    messages: OpenAiMessages | None = None
    add_special_tokens: bool | None = Field(
        None, description="Add the special tokens of the model's files around a prompt. Default: true."
    )
    return_token_strs: bool | None = Field(False, description="Return the text of each token.")
    tools: _Tools = None
    chat_template_kwargs: _TemplateKwargs = None


class DetokenizeRequest(RequestBody):
    """Token ids."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS_DECODED, fail_fast=True)]
