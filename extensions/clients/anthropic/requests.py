"""Request bodies of Anthropic's API. Each class validates its body, and OpenAPI shows its schema.

Not in these classes: the fields that the policies refuse, and the rules between fields.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from app.protocols.shared.bodies import MAX_INT32, Body, got
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.fields.generation import MAX_STOPS, SamplingFields, StopString, Stream
from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal
from app.protocols.shared.tools import MAX_TOOLS
from extensions.clients.anthropic.blocks import CacheControl, InputMessages, System
from frameworks.core.errors import InvalidInput

_RUNS_NO_TOOLS = "the server itself runs no tools: omit the field"

_POLICY_OF_ALL = {
    "mcp_servers": Refusal(_RUNS_NO_TOOLS, ([],)),
    # No message is removed. A prompt that does not fit is refused.
    "context_management": Ignored(neutral=({}, {"edits": []})),
    "speed": Ignored(neutral=("standard",)),
    # The key names the tenant.
    "user_profile_id": Ignored(),
    "workspace_id": Ignored(),
}
COUNT_TOKENS_POLICY = FieldPolicy(_POLICY_OF_ALL)
MESSAGES_POLICY = FieldPolicy(
    {
        **_POLICY_OF_ALL,
        "container": Refusal(_RUNS_NO_TOOLS),
        "diagnostics": Ignored(),
        "inference_geo": Ignored(),
        # There is one tier, and `priority` for a position in the queue.
        "service_tier": Ignored(neutral=("auto", "standard_only")),
    }
)
TOOL_POLICY = FieldPolicy(
    {
        "allowed_callers": Refusal("only the model calls tools: omit the field", (["direct"],)),
        "defer_loading": Refusal("the model gets all tools: omit the field", (False,)),
        "input_examples": Refusal("put the examples into the description", ([],)),
    }
)


_ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
_IsSingle = Annotated[bool | None, Field(description="true: at most one call.")]
_Display = Annotated[Literal["summarized"] | None, Field(description="The whole thinking is returned.")]


class AnthropicTool(Body):
    """A tool that the model may call and the client runs."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "weather", "input_schema": {"type": "object"}}]})

    name: _ToolName
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON schema of the input.")
    type: Literal["custom"] | None = None
    strict: bool | None = Field(False, description="A call meets the schema even if the model need not call.")
    eager_input_streaming: Any = Field(None, description="Accepted without effect: input is always streamed.")
    cache_control: CacheControl = None


def _plain_tools(tools: Any) -> Any:
    """Remove fields that ask for nothing. Raises InvalidInput for tools that the server would have to run."""
    if not isinstance(tools, list):
        return tools
    return [_plain_tool(tool, f"tools[{index}].") if type(tool) is dict else tool for index, tool in enumerate(tools)]


def _plain_tool(tool: dict[str, Any], within: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidInput(
            f"{within}type",
            f'expected "custom", got {got(kind)}; the server itself runs no tools: send name and input_schema',
        )
    tool = dict(tool)
    TOOL_POLICY.apply(tool, within)
    return tool


class AutoTool(Body):
    """The model decides whether it calls tools."""

    type: Literal["auto"]
    disable_parallel_tool_use: _IsSingle = False


class AnyTool(Body):
    """The model calls at least one tool."""

    type: Literal["any"]
    disable_parallel_tool_use: _IsSingle = False


class ChosenTool(Body):
    """The model calls this tool once."""

    type: Literal["tool"]
    name: _ToolName
    disable_parallel_tool_use: _IsSingle = False


class NoTool(Body):
    """The model calls no tool."""

    type: Literal["none"]


class EnabledThinking(Body):
    """The model thinks first."""

    type: Literal["enabled"]
    budget_tokens: int = Field(
        ge=1, le=MAX_INT32, description="Accepted without effect: max_tokens limits thinking and text together."
    )
    display: _Display = None


class AdaptiveThinking(Body):
    """The model thinks as its chat template says."""

    type: Literal["adaptive"]
    display: _Display = None


class DisabledThinking(Body):
    """The model does not think, if its chat template has a switch."""

    type: Literal["disabled"]


class JsonFormat(Body):
    """JSON that meets a schema."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "json_schema", "schema": {"type": "object"}}]})

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """Format of the text, and effort of the thinking."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"effort": "low"}]})

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Passed to a chat template that reads it."
    )
    format: JsonFormat | None = None


class MessagesBody(RequestBody):
    """Fields of both routes."""

    messages: InputMessages
    system: System = None
    tools: (
        Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(_plain_tools)]
        | None
    ) = Field(None, description="Tools that the model may call.", examples=[[]])
    tool_choice: Annotated[AutoTool | AnyTool | ChosenTool | NoTool, Field(discriminator="type")] | None = Field(
        None, description="Whether the model calls a tool. Default: auto.", examples=[{"type": "auto"}]
    )
    thinking: Annotated[EnabledThinking | AdaptiveThinking | DisabledThinking, Field(discriminator="type")] | None = (
        Field(None, description="Default: as the chat template says.", examples=[{"type": "disabled"}])
    )
    output_config: OutputConfig | None = None
    cache_control: CacheControl = None


class CountTokensRequest(MessagesBody):
    """A conversation whose tokens are counted."""


class MessagesRequest(SamplingFields, MessagesBody):
    """A conversation to continue."""

    max_tokens: int = Field(ge=1, le=MAX_INT32, description="Maximum number of generated tokens.", examples=[1024])
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None = Field(
        None, description="Strings that end a text; they are not part of it."
    )
    stream: Stream = False
    metadata: Any = Field(None, description="Accepted without effect.")
