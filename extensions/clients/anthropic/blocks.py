"""Messages of Anthropic's API, and the blocks of their contents: text, thinking, tool calls and results."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from app.protocols.shared.bodies import Body, got, read_body
from app.protocols.shared.fields.generation import MAX_MESSAGES
from app.protocols.shared.fields.policy import FieldPolicy, Refusal
from frameworks.core.errors import InvalidInput

MAX_BLOCKS = 10_000
"""Blocks of one content."""

_ONLY_TEXT = "the server reads texts and images: put the text into a text block"
_RUNS_NO_TOOLS = "the server itself runs no tools: leave the block out"
_UNREAD: dict[str, str] = {
    "document": _ONLY_TEXT,
    "search_result": _ONLY_TEXT,
    "container_upload": _ONLY_TEXT,
    "redacted_thinking": "no model reads hidden thinking: leave the block out",
}

# A response that a client sends back as a message has most of these, empty.
_POLICY = FieldPolicy(
    {
        "citations": Refusal("the server cites no sources: omit the field", ([], {"enabled": False})),
        "caller": Refusal("only the model calls tools: omit the field", ({"type": "direct"},)),
        "toolset_name": Refusal("there are no sets of tools: omit the field"),
    }
)

CacheControl = Annotated[
    Any, Field(description="Accepted without effect: common beginnings of prompts are always cached.")
]
_Name = Annotated[str, Field(min_length=1, max_length=256)]


class TextBlock(Body):
    """A text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "text", "text": "…"}]})

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None


class ImageUrlSource(Body):
    """An image at a host of `server.media_hosts`."""

    type: Literal["url"]
    url: str


class ImageSource(Body):
    """The bytes of an image in base64."""

    type: Literal["base64"]
    media_type: str = Field("", max_length=256, description="Without effect: the file itself shows its format.")
    data: str


class ImageBlock(Body):
    """An image."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "…"}}]
        }
    )

    type: Literal["image"]
    source: Annotated[ImageSource | ImageUrlSource, Field(discriminator="type")]
    cache_control: CacheControl = None


class ThinkingBlock(Body):
    """The thinking of an earlier response."""

    type: Literal["thinking"]
    thinking: str
    signature: Any = Field(None, description="Accepted without effect.")
    cache_control: CacheControl = None


class ToolUseBlock(Body):
    """A tool call of an earlier response."""

    type: Literal["tool_use"]
    id: _Name
    name: _Name
    input: dict[str, Any]
    cache_control: CacheControl = None


def _plain_text(content: Any) -> Any:
    return "" if content is None else content


ResultBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ToolResultBlock(Body):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: _Name
    content: Annotated[
        str | Annotated[list[ResultBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)],
        BeforeValidator(_plain_text, json_schema_input_type=str | list[ResultBlock] | None),
    ] = ""
    is_error: Any = Field(None, description="Accepted without effect: state the error in the content.")
    cache_control: CacheControl = None


Block = TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
Role = Literal["user", "assistant", "system"]

_KINDS: dict[Role, dict[str, type[Block]]] = {
    "user": {"text": TextBlock, "image": ImageBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
    "system": {"text": TextBlock},
}
_RESULT_KINDS: dict[str, type[Block]] = {"text": TextBlock, "image": ImageBlock}


class InputMessage(Body):
    """One turn of a conversation. A text has the meaning of one text block."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": "…"}]})

    role: Role
    content: (
        str
        | Annotated[
            list[Annotated[Block, Field(discriminator="type")]],
            Field(min_length=1, max_length=MAX_BLOCKS, fail_fast=True),
        ]
    )


def _built_messages(messages: Any) -> Any:
    """Build the blocks of messages. Raises InvalidInput for one that is refused.

    pydantic validates a list in one call, and no other thread runs meanwhile. It accepts built blocks as they are.
    """
    if not isinstance(messages, list):
        return messages
    if len(messages) > MAX_MESSAGES:
        raise InvalidInput("messages", f"expected at most {MAX_MESSAGES} messages, got {len(messages)}; send fewer")
    return [
        _built_message(message, index) if type(message) is dict else message for index, message in enumerate(messages)
    ]


def _built_message(message: dict[str, Any], index: int) -> Any:
    role, content = message.get("role"), message.get("content")
    if type(content) is list and isinstance(role, str) and role in _KINDS and len(content) <= MAX_BLOCKS:
        message = {**message, "content": built_blocks(content, _KINDS[role], f"messages[{index}].content")}
    return read_body(InputMessage, message, f"messages[{index}].")


def built_blocks(blocks: list[Any], kinds: dict[str, type[Block]], field: str) -> list[Any]:
    """Return valid blocks; anything but an object is left as it is. `kinds`: by `type`, those that may be here.

    Raises InvalidInput, UnknownField.
    """
    return [
        _built_block(block, kinds, f"{field}[{index}].") if type(block) is dict else block
        for index, block in enumerate(blocks)
    ]


def _built_block(block: dict[str, Any], kinds: dict[str, type[Block]], within: str) -> Block:
    name = block.get("type")
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidInput(f"{within}type", f"expected {_either(kinds)}, got {_found(name)}{_remedy(name)}")
    fields = dict(block)
    _POLICY.apply(fields, within)
    if kind is ToolResultBlock and type(fields.get("content")) is list and len(fields["content"]) <= MAX_BLOCKS:
        fields["content"] = built_blocks(fields["content"], _RESULT_KINDS, f"{within}content")
    return read_body(kind, fields, within)


def _either(kinds: dict[str, type[Block]]) -> str:
    return " or ".join(f'"{name}"' for name in kinds)


def _found(name: Any) -> str:
    return "nothing" if name is None else got(name)


def _remedy(name: Any) -> str:
    if not isinstance(name, str):
        return ""
    if name in _UNREAD:
        return f"; {_UNREAD[name]}"
    is_of_server = name.startswith(("server_tool_", "mcp_tool_")) or name.endswith("_tool_result")
    return f"; {_RUNS_NO_TOOLS}" if is_of_server else ""


def _built_system(system: Any) -> Any:
    if isinstance(system, list) and len(system) <= MAX_BLOCKS:
        return built_blocks(system, _KINDS["system"], "system")
    return system


InputMessages = Annotated[
    list[InputMessage],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True, description="The last one is no response."),
    BeforeValidator(_built_messages),
]
System = Annotated[
    str | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)] | None,
    Field(description="Instructions before the messages."),
    BeforeValidator(_built_system),
]
