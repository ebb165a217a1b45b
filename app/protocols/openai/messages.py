"""Messages of the OpenAI API: text, tool calls and their results."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler

from app.protocols.shared.bodies import Body, read_body
from app.protocols.shared.fields.generation import MAX_MESSAGES, ChatMessage, build_messages
from app.protocols.shared.fields.message_content import NO_IMAGES, Part, read_content
from app.protocols.shared.fields.policy import FieldPolicy, Refusal
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageCall, PromptEnding

MAX_CALLS = 128
"""Tool calls of a message."""

_NO_FUNCTION_CALLS = "send tool_calls, and messages with the role tool"
_MESSAGE_FIELDS = {"role", "content"}

# A response that a client sends back as a message has most of these, empty.
_MESSAGE = FieldPolicy(
    {
        "refusal": Refusal("put it into the content", ([],)),
        "annotations": Refusal("omit the field", ([],)),
        "audio": Refusal("the server reads only text: omit the field", ([],)),
        "function_call": Refusal(_NO_FUNCTION_CALLS, ([],)),
    }
)

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Content = str | Annotated[list[Part], Field(fail_fast=True)]


class CalledFunction(Body):
    """The function of a call."""

    name: _Name
    arguments: str = Field(description="A JSON object, as text.")


class MessageToolCall(Body):
    """A tool call of an earlier response."""

    id: _Name
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Any = Field(None, description="Accepted without effect.")


class OpenAiMessage(ChatMessage):
    """One turn of a conversation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": "…"}]})

    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_call_id: str | None = Field(None, max_length=256, description="The call whose result the content is.")
    name: str | None = Field(None, max_length=256, description="For chat templates that read it.")
    reasoning_content: str | None = Field(None, description="The reasoning of an earlier response.")


def _without_null(content: Any) -> Any:
    return "" if content is None else content


class CallingMessage(OpenAiMessage):
    """A response with tool calls, sent back."""

    content: Annotated[_Content, BeforeValidator(_without_null, json_schema_input_type=_Content | None)] = ""
    tool_calls: Annotated[list[MessageToolCall], Field(min_length=1, max_length=MAX_CALLS, fail_fast=True)]


class _EitherMessage:
    """Show both kinds of messages in OpenAPI. `_plain_messages` builds the second; it is an instance of the first."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(each.__pydantic_core_schema__) for each in (OpenAiMessage, CallingMessage)]}


def _plain_messages(messages: Any) -> Any:
    """Remove empty fields, and build messages with calls; `developer` becomes `system`. Raises InvalidInput.

    Anything but a list of objects is returned as it is.
    """
    if not isinstance(messages, list):
        return messages
    return build_messages(
        [_plain(message, index) if isinstance(message, dict) else message for index, message in enumerate(messages)],
        OpenAiMessage,
    )


def _plain(message: dict[str, Any], index: int) -> Any:
    role = message.get("role")
    if role == "function":
        raise InvalidInput(
            f"messages[{index}].role",
            f'expected "system", "user", "assistant" or "tool", got "{role}"; {_NO_FUNCTION_CALLS}',
        )
    if message.keys() != _MESSAGE_FIELDS:
        message = {name: value for name, value in message.items() if value is not None or name == "content"}
        _MESSAGE.apply(message, f"messages[{index}].")
        if "reasoning" in message:
            # vLLM's name of it.
            message.setdefault("reasoning_content", message.pop("reasoning"))
        kind = CallingMessage if message.get("tool_calls") else OpenAiMessage
        if message.keys() != _MESSAGE_FIELDS:
            # One after another, so that other threads run between them.
            message = {**message, "role": "system"} if role == "developer" else message
            return read_body(kind, message, f"messages[{index}].")
    return {**message, "role": "system"} if role == "developer" else message


OpenAiMessages = Annotated[
    list[Annotated[OpenAiMessage, _EitherMessage()]],
    Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        description="The role `developer` is read as `system`.",
    ),
    BeforeValidator(_plain_messages),
]


def to_conversation(
    messages: Sequence[OpenAiMessage],
    tools: str = "",
    reasoning_effort: str | None = None,
    variables: str = "",
    ending: PromptEnding = "response",
) -> Conversation:
    """Join the text parts of each message, read its images, and add the name of the function to the result of its
    call. Raises InvalidInput.
    """
    names: dict[str, str] = {}
    turns = []
    for index, each in enumerate(messages):
        content, images = each.content, NO_IMAGES
        if not isinstance(content, str):
            content, images = read_content(content, f"messages[{index}].content")
        calls: tuple[MessageCall, ...] = ()
        if each.tool_calls:
            calls = tuple(MessageCall(call.id, call.function.name, call.function.arguments) for call in each.tool_calls)
            names |= {call.id: call.name for call in calls}
        call_id = each.tool_call_id or ""
        name = each.name or names.get(call_id, "")
        turns.append(Message(each.role, content, calls, call_id, name, each.reasoning_content or "", images))
    return Conversation(tuple(turns), tools, reasoning_effort, variables, ending)
