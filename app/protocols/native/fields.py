"""Describe the bodies of /infer: which fields they have, and which of them belong together.

`GenerationOptions` also validates the options of `prompt` and `messages`. Tensors and texts are decoded by hand, for
speed; a property test holds InferRequest to the decoder.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import MAX_INT32, Body, ResponseBody
from app.protocols.shared.fields.constraints import ConstraintFields
from app.protocols.shared.fields.generation import (
    MAX_TOP_LOGPROBS,
    Messages,
    NumChoices,
    SamplingFields,
    SearchFields,
    StoppingFields,
    Stream,
)
from app.protocols.shared.fields.images import Images
from app.protocols.shared.fields.media import MediaFiles
from app.protocols.shared.fields.sequences import MAX_ID, MAX_ID_CHARACTERS
from app.protocols.shared.fields.texts import Texts
from frameworks.images.headers import FORMATS
from frameworks.types import DEFAULT_PRIORITY, LAST_PRIORITY, Vectors

DEFAULT_MAX_TOKENS = 256
"""Of a text that `prompt` or `messages` request."""


class GenerationOptions(ConstraintFields, StoppingFields, SamplingFields, SearchFields):
    """The options of `prompt` and `messages`."""

    max_tokens: Annotated[int | None, Field(ge=1, le=MAX_INT32)] = Field(
        None,
        description=f"Maximum number of generated tokens. Default: {DEFAULT_MAX_TOKENS}, or the length that the files "
        "of a model with an encoder state.",
    )
    n: NumChoices = 1
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | bool | None = Field(
        None,
        description="Return the log probabilities of the tokens, and of this number of most likely tokens at each "
        "position; true: 0.",
    )
    stream: Stream = False


# The value of an omitted field that does not accept null.
_ABSENT: Any = None


def drop_null_defaults(schema: dict[str, Any]) -> None:
    """Describe fields that may be left out, but not be null."""
    for described in schema["properties"].values():
        if described.get("default", _ABSENT) is None:
            described.pop("default", None)


class SequenceFields(Body):
    """The place of a request in a sequence. The steps of one sequence run one after the other."""

    id: Annotated[int, Field(ge=1, le=MAX_ID)] | Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]
    start: bool = Field(False, description="The first step; it replaces a running sequence of this id.")
    end: bool = Field(False, description="The last step.")


MAX_MIN_VALUE = 1_000_000.0
"""Above the weights of every model of sparse vectors, within float32."""


class InferRequest(GenerationOptions):
    """Exactly one of `input_data`, `inputs`, `text`, `image`, `prompt` and `messages`."""

    model_config = ConfigDict(json_schema_extra=drop_null_defaults)

    model_name: str = Field(_ABSENT, description="The model; not needed where the path names it.")
    version: str = Field(_ABSENT, description="The version of the model. Default: the one that serves traffic.")
    input_data: Any = Field(
        _ABSENT,
        description="The tensor of a model with one required input: nested, or flat. A flat list is reshaped to the "
        "declared shape: one free dimension is computed from the number of values; with several, batch_size fixes the "
        "first.",
        examples=[[[0.0, 0.5, 1.0]]],
    )
    batch_size: int = Field(_ABSENT, ge=1, le=MAX_INT32, description="The number of rows of a flat input_data.")
    inputs: dict[str, Any] = Field(
        _ABSENT,
        description='Named tensors: nested arrays, or {"data", "shape", "dtype"} with flat or nested data.',
        examples=[{"image": {"data": [0.0, 0.5, 1.0], "shape": [1, 3], "dtype": "float32"}}],
    )
    sequence: SequenceFields = Field(
        _ABSENT,
        description="The place of input_data or inputs in a sequence, for models with a state; others refuse it.",
    )
    outputs: list[str] = Field(
        _ABSENT,
        min_length=1,
        description="Return only these outputs; with input_data at most one, with image for models of task tensor.",
    )
    text: Texts | dict[str, Any] | list[dict[str, Any] | list[str]] = Field(
        _ABSENT,
        description="A text or a list of texts. Objects for tasks that read several texts, such as "
        '{"question", "context"} of question-answering.',
    )
    image: Images = Field(
        _ABSENT,
        description=f"A file in {FORMATS}, or a list of them, for models that read images: base64, or data URLs. "
        "No other URL is accepted.",
        examples=["data:image/png;base64,iVBORw0KGgo…"],
    )
    audio: MediaFiles = Field(
        _ABSENT, description="A file of sound or a list of them, for models that read audio: base64, or data URLs."
    )
    video: MediaFiles = Field(
        _ABSENT, description="A video file or a list of them, for models that read videos: base64, or data URLs."
    )
    parameters: dict[str, Any] = Field(
        _ABSENT,
        description="Parameters of the model's task, by transformers' names; GET /models lists them. For models that "
        "embed or classify the options of text and image, instead of their own fields; null: the default.",
        examples=[{"aggregation_strategy": "simple"}],
    )
    normalize: bool = Field(
        _ABSENT, description="embed: L2-normalise the vectors. Default: as the model's own files say, else true."
    )
    truncate: bool = Field(_ABSENT, description="Truncate texts at the model's limit. Default: true.")
    top_k: Annotated[int | None, Field(ge=-1, le=MAX_INT32)] = Field(
        None,
        description="classify: the number of labels per text or image, 1 or more; default: all. Sparse vectors: "
        "the number of elements per text, those of the highest values. Generation: sample "
        "from this number of most likely tokens; 0 or -1: all; default: the model's own.",
    )
    min_value: float = Field(
        _ABSENT,
        ge=0,
        le=MAX_MIN_VALUE,
        description="Sparse vectors: the smallest element that is returned. Default: 0.",
    )
    input_type: Literal["query", "document"] = Field(
        _ABSENT,
        description="embed: how a model of late interaction, or with a Router, reads the texts. Default: document.",
    )
    dimensions: int = Field(
        _ABSENT,
        ge=1,
        le=MAX_INT32,
        description="embed: truncate the vectors to this size, one that the model allows. Default: whole vectors.",
    )
    vectors: Vectors | list[Vectors] = Field(
        _ABSENT,
        description="embed: the kinds of vectors, of those that GET /models lists. Default: the first of them.",
        examples=[["dense", "sparse"]],
    )
    function_to_apply: Literal["none", "softmax", "sigmoid"] = Field(
        _ABSENT, description="classify: none returns the logits. Others: only the model's own, which is the default."
    )
    prompt: str = Field(_ABSENT, description="The text to continue, for models that generate text.")
    messages: Messages = Field(
        _ABSENT, description="A conversation, for models that generate text and have a chat template."
    )
    priority: int = Field(
        _ABSENT,
        ge=1,
        le=LAST_PRIORITY,
        description=f"Position in the queue, 1 is first; it rises with the time in the queue. Default: "
        f"{DEFAULT_PRIORITY}.",
    )
    timeout_ms: int = Field(_ABSENT, ge=1, le=MAX_INT32, description="Deadline of the request in milliseconds.")


INPUT_FIELDS = ("input_data", "inputs", "text", "image", "audio", "video", "prompt", "messages")
"""A request has exactly one of these."""
TENSOR_INPUTS = frozenset({"input_data", "inputs"})
FILE_INPUTS = ("image", "audio", "video")
"""Fields of files; a form has files of one of them."""
GENERATION_INPUTS = frozenset({"prompt", "messages"})

GENERATION_FIELDS = frozenset(GenerationOptions.model_fields)
OPTIONS: dict[str, frozenset[str]] = {
    "input_data": frozenset({"batch_size", "outputs", "sequence"}),
    "inputs": frozenset({"outputs", "sequence"}),
    "text": frozenset(
        {"normalize", "truncate", "top_k", "min_value", "input_type", "dimensions", "vectors", "function_to_apply"}
    ),
    "image": frozenset({"normalize", "top_k", "outputs", "dimensions", "function_to_apply"}),
    "audio": frozenset(),
    "video": frozenset(),
    "prompt": GENERATION_FIELDS,
    "messages": GENERATION_FIELDS,
}
"""Input field → the options that go with it, besides COMMON_FIELDS."""

_COMMON_FIELDS = ("model_name", "version", "priority", "timeout_ms")
COMMON_FIELDS = frozenset(_COMMON_FIELDS)
"""The fields of every request."""

PARAMETERS = "parameters"
"""The field with the parameters of a model's task."""

FIELDS = dict.fromkeys((*INPUT_FIELDS, *_COMMON_FIELDS, PARAMETERS, *sorted(frozenset().union(*OPTIONS.values()))))
"""All fields, in the order in which a message shows them."""


class NamedTensor(ResponseBody):
    """One output in a response to `inputs`."""

    dtype: str
    shape: list[int] | None
    data: Any


class Prediction(ResponseBody):
    """One label of a text or an image, with its probability."""

    label: str
    score: float


class TokenLogprob(ResponseBody):
    """The log probability of a token by the model's logits, before temperature and penalties; null: impossible."""

    token: str
    token_id: int
    logprob: float | None


class ChosenToken(TokenLogprob):
    """A token of the text, and the most likely tokens at its position by falling probability."""

    top: list[TokenLogprob]


class GeneratedChoice(ResponseBody):
    """One of several texts."""

    index: int
    text: str
    finish_reason: str
    logprobs: list[ChosenToken] | None = None


class SparseVector(ResponseBody):
    """The elements of a sparse vector that are not 0, by ascending index."""

    indices: list[int]
    values: list[float]


class InferResponse(ResponseBody):
    """The response has the fields that belong to the input of the request."""

    model_name: str
    version: str
    latency_ms: float
    output_data: Any = Field(None, description="For input_data: flat for a flat list, nested for a nested one.")
    output_shape: list[int] | None = Field(None, description="For input_data.")
    outputs: dict[str, NamedTensor] | None = Field(
        None, description="For inputs, and for image with models of task tensor."
    )
    embeddings: list[list[float]] | None = Field(
        None, description="For text and image, embed models: one vector for each, in order."
    )
    multi_embeddings: list[list[list[float]]] | None = Field(
        None, description="For text and image, models of late interaction: the vectors of the tokens of each, in order."
    )
    sparse_embeddings: list[SparseVector] | None = Field(
        None, description="For text, models of sparse vectors: the vector of each, in order."
    )
    tokens: int | None = Field(None, description="For text, embed models: the number of tokens.")
    predictions: list[list[Prediction]] | list[Any] | None = Field(
        None,
        description="For text and image, classify models: the labels of each by falling score. For models of other "
        "tasks: for each input what transformers' pipeline returns, pictures as PNG in base64.",
    )
    text: str | None = Field(None, description="For prompt and messages.")
    finish_reason: Literal["stop", "length"] | None = Field(
        None,
        description="For prompt and messages. stop: the end of the text; length: max_tokens or the context.",
    )
    logprobs: list[ChosenToken] | None = Field(None, description="For prompt and messages with logprobs.")
    choices: list[GeneratedChoice] | None = Field(
        None, description="For prompt and messages with n above 1, instead of text, finish_reason and logprobs."
    )
    tokens_generated: int | None = Field(None, description="For prompt and messages: of all texts.")
    accepted_prediction_tokens: int | None = Field(
        None, description="Generated tokens that speculation proposed; only where it proposed any."
    )
    rejected_prediction_tokens: int | None = Field(
        None,
        description="Tokens that speculation proposed and that are no part of the text; only where it proposed any.",
    )
    prompt_tokens: int | None = Field(None, description="For prompt and messages.")


class ErrorDetail(ResponseBody):
    """The error: its code, and a message with the field, the expected value and the remedy."""

    code: str
    message: str
    request_id: str


class ErrorResponse(ResponseBody):
    """The body of every response with a status of 400 and above."""

    error: ErrorDetail
