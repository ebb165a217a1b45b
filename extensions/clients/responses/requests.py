"""The request body of /v1/responses."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.openai.requests import Effort, FunctionName, StreamPadding
from app.protocols.shared.bodies import Body
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.fields.constraints import JsonObjectFormat, TextFormat
from app.protocols.shared.fields.generation import IgnoreEos, MaxTokens, SamplingFields, Stream, TopLogprobs
from app.protocols.shared.tools import MAX_TOOLS
from extensions.clients.responses.items import InputItems, Label

_MAX_LABELS = 16

_Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_Metadata = Annotated[
    dict[Annotated[str, Field(pattern=r"^[\s\S]{1,64}$", examples=["…"])], Annotated[str, Field(max_length=512)]],
    Field(max_length=_MAX_LABELS, json_schema_extra={"additionalProperties": False}),
]
_Echoed = Annotated[
    Annotated[str, Field(max_length=1024)] | None,
    Field(description="Accepted without effect, and repeated in the response."),
]


class JsonSchemaFormat(Body):
    """JSON that meets a schema. Every text meets it, with and without `strict`."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")
    name: Label = None
    description: Label = None
    strict: Label = None


class TextOptions(Body):
    """Form of the text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"format": {"type": "text"}}]})

    format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type", examples=[None])] | None
    ) = None


class ReasoningOptions(Body):
    """How the model thinks."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"effort": "none"}]})

    effort: Effort | None = Field(
        None, description="Passed to a chat template that reads it; other models accept none.", examples=["none"]
    )


class FunctionTool(Body):
    """A function that the model may call."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]}
    )

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(False, description="A call meets the schema even if the model need not call.")


class NamedFunctionTool(Body):
    """The function that must be called."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "function", "name": "weather"}]})

    type: Literal["function"]
    name: FunctionName


class ConversationBody(RequestBody):
    """Fields that the prompt depends on. Nothing is stored: each request has the items of all earlier turns."""

    input: str | InputItems | None
    instructions: str | None = Field(None, description="A system message before the input.")
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="Functions that the model may call.", examples=[[]]
    )
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = Field(
        None, description="Whether the model calls a function. Default: auto.", examples=["auto"]
    )
    parallel_tool_calls: bool | None = Field(True, description="Whether a response may have several calls.")


class InputTokensRequest(ConversationBody):
    """A conversation whose tokens are counted: input, instructions, or both."""

    input: str | InputItems | None = Field(
        None, description="A message of the user, or items.", examples=["Tell me a story."]
    )


class ResponsesRequest(SamplingFields, ConversationBody):
    """A conversation to continue. Nothing is stored: each request has the items of all earlier turns."""

    input: str | InputItems = Field(description="A message of the user, or items.", examples=["Tell me a story."])
    max_output_tokens: MaxTokens = Field(
        None, description="Maximum number of generated tokens. Default: up to the end of the model's context."
    )
    ignore_eos: IgnoreEos = False
    include: Annotated[list[_Included], Field(fail_fast=True)] | None = Field(
        None, description="Parts of the response that are left out otherwise. Reasoning is always included, as text."
    )
    top_logprobs: TopLogprobs = None
    stream: Stream = False
    stream_options: StreamPadding | None = Field(None, description="Only for a streamed response.")
    metadata: _Metadata | None = Field(None, description="Repeated in the response.")
    user: _Echoed = None
    safety_identifier: _Echoed = None
    prompt_cache_key: _Echoed = None
