"""Request bodies of Ollama's API. Each class validates its body, and OpenAPI shows its schema."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.protocols.shared.bodies import MAX_INT32, Body
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.fields.generation import (
    MAX_MESSAGES,
    FrequencyPenalty,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from app.protocols.shared.fields.images import MAX_IMAGES
from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal
from app.protocols.shared.fields.texts import Texts, Truncate
from app.protocols.shared.tools import MAX_TOOLS
from frameworks.types import ModelSpec

_NO_LOGPROBS = "send the request to /v1/chat/completions"
_OWN_TEMPLATE = "the model's own template is used: send a formatted prompt with raw to /api/generate"
CHAT = FieldPolicy(
    {
        "logprobs": Refusal(_NO_LOGPROBS, (False,)),
        "top_logprobs": Refusal(_NO_LOGPROBS, (0,)),
        "template": Refusal(_OWN_TEMPLATE, ("",)),
        # No part of a prompt is left out. A prompt that does not fit is refused.
        "truncate": Ignored(neutral=(False,)),
        "shift": Ignored(neutral=(False,)),
        "_debug_render_only": Refusal("send the messages to /v1/tokenize", (False,)),
    }
)
"""Refused fields of /api/chat."""
_NO_PICTURES = "the server generates only text: omit the field"
GENERATE = FieldPolicy(
    {
        **CHAT.refusals,
        "context": Refusal("send the conversation to /api/chat", ([],)),
        "width": Refusal(_NO_PICTURES, (0,)),
        "height": Refusal(_NO_PICTURES, (0,)),
        "steps": Refusal(_NO_PICTURES, (0,)),
    }
)
"""Refused fields of /api/generate."""
OPTIONS = FieldPolicy(
    {
        "mirostat": Refusal("send top_p or min_p", (0,)),
        "tfs_z": Refusal("send top_p or min_p", (1, 1.0)),
        "typical_p": Refusal("send top_p or min_p", (1, 1.0)),
    }
)
"""Refused members of `options`."""
_OPTIONS_OF_VECTORS = FieldPolicy({name: Ignored(neutral=each.neutral) for name, each in OPTIONS.refusals.items()})

_Ignored = Annotated[Any, Field(description="Accepted without effect.")]
_MAX_NAME = 256
_Images = Annotated[
    Annotated[list[str], Field(max_length=MAX_IMAGES, fail_fast=True)] | None,
    Field(description="Files in base64, for models that see. They precede the text."),
]


class OllamaOptions(Body):
    """Options of a text. Those of llama.cpp's runtime have no effect."""

    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    seed: int | None = Field(None, ge=-1, le=2**63 - 1, description="Equal seeds give equal texts. -1: random.")
    stop: Stop = None
    num_predict: int | None = Field(
        None, ge=-2, le=MAX_INT32, description="Maximum number of generated tokens. Default, and below 1: no limit."
    )
    repeat_penalty: RepetitionPenalty = None
    presence_penalty: PresencePenalty = None
    frequency_penalty: FrequencyPenalty = None
    draft_num_predict: _Ignored = None
    num_ctx: _Ignored = None
    num_batch: _Ignored = None
    num_gpu: _Ignored = None
    num_keep: _Ignored = None
    num_thread: _Ignored = None
    main_gpu: _Ignored = None
    numa: _Ignored = None
    low_vram: _Ignored = None
    f16_kv: _Ignored = None
    logits_all: _Ignored = None
    vocab_only: _Ignored = None
    use_mmap: _Ignored = None
    use_mlock: _Ignored = None
    embedding_only: _Ignored = None
    repeat_last_n: _Ignored = None
    mirostat_eta: _Ignored = None
    mirostat_tau: _Ignored = None
    penalize_newline: _Ignored = None


_RUNTIME = tuple(name for name, field in OllamaOptions.model_fields.items() if field.annotation is Any)


class _OllamaBody(RequestBody):
    options: OllamaOptions | None = None
    keep_alive: _Ignored = None


def ignored_of(body: _OllamaBody, spec: ModelSpec) -> tuple[str, ...]:
    """Return the fields of a body that have no effect on any model."""
    options = body.options
    names = (
        () if options is None else tuple(f"options.{name}" for name in _RUNTIME if getattr(options, name) is not None)
    )
    return names if body.keep_alive is None else (*names, "keep_alive")


def ignored_of_vectors(body: _OllamaBody, spec: ModelSpec) -> tuple[str, ...]:
    """Return the fields of a body that have no effect on vectors, which are all options."""
    given = () if body.options is None else body.options.model_dump(exclude_none=True)
    names = tuple(f"options.{name}" for name in given)
    return names if body.keep_alive is None else (*names, "keep_alive")


def check_options_of_vectors(fields: dict[str, Any], spec: ModelSpec) -> tuple[str, ...]:
    """Remove the options that only texts could have; return those that are ignored."""
    return _OPTIONS_OF_VECTORS.apply_to(fields, "options")


class OllamaEmbedRequest(_OllamaBody):
    """Texts to embed."""

    input: Texts = Field(description="A text or a list of texts.", examples=["Bread rises overnight."])
    truncate: Truncate = True
    dimensions: int | None = Field(
        None,
        ge=0,
        le=MAX_INT32,
        description="Truncate the vectors to this size, where the model supports it. 0: do not.",
    )


class OllamaEmbeddingsRequest(_OllamaBody):
    """A text to embed, as older clients send it."""

    prompt: str = Field(examples=["Bread rises overnight."])


class OllamaTextRequest(_OllamaBody):
    """Fields of both routes of text generation."""

    stream: Annotated[
        bool, BeforeValidator(lambda given: True if given is None else given, json_schema_input_type=bool | None)
    ] = Field(True, description="Stream the response as lines of JSON. Default: true.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description="json, or the JSON schema of the text.", examples=["json"]
    )
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None, description="Whether the model thinks before it answers, or how much."
    )


class OllamaCalledFunction(Body):
    """The function of a call."""

    name: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]
    arguments: dict[str, Any]
    index: _Ignored = None
    description: _Ignored = None


class OllamaCall(Body):
    """A tool call of an earlier response."""

    function: OllamaCalledFunction
    id: str | None = Field(None, max_length=_MAX_NAME)
    index: _Ignored = None
    type: _Ignored = None


class OllamaMessage(Body):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = Field(None, description="The thinking of an earlier response.")
    tool_calls: Annotated[list[OllamaCall], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_name: str | None = Field(None, max_length=_MAX_NAME, description="The function whose result the content is.")
    tool_call_id: str | None = Field(None, max_length=_MAX_NAME, description="The call whose result the content is.")
    images: _Images = None


class OllamaFunction(Body):
    """A function."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")


class OllamaTool(Body):
    """A tool."""

    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaChatRequest(OllamaTextRequest):
    """A conversation to continue."""

    messages: Annotated[list[OllamaMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="Functions that the model may call.", examples=[[]]
    )


class OllamaGenerateRequest(OllamaTextRequest):
    """A prompt to answer, or with `raw` to continue."""

    prompt: str = Field(examples=["Once upon a time"])
    system: str | None = None
    raw: bool | None = Field(False, description="Use no chat template: continue the prompt.")
    suffix: str | None = Field(None, description="Text after the generated one, as suffix of /v1/completions.")
    images: _Images = None
