"""Turn the messages of Anthropic's API into the turns that chat templates know."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import orjson

from extensions.clients.anthropic.blocks import (
    Block,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageCall, PromptEnding

# Between the texts of two messages of one role, which are one turn.
_BREAK = TextBlock(type="text", text="\n\n")


def to_conversation(
    system: str | list[TextBlock] | None, messages: Sequence[InputMessage], tools: str, effort: str | None
) -> Conversation:
    """Return the conversation: a turn for each role, and one for each result of a tool. Raises InvalidInput.

    The text continues a last message of the assistant. `tools`, `effort`: as in Conversation.
    """
    turns = []
    if system:
        turns.append(Message("system", _text_of(system)))
    names: dict[str, str] = {}
    for role, group in groupby(messages, lambda each: each.role):
        blocks = _blocks_of(group)
        if role == "assistant":
            turns.append(_response(blocks))
            names |= {call.id: call.name for call in turns[-1].tool_calls}
        else:
            turns += _turns_of(role, blocks, names)
    return Conversation(tuple(turns), tools, effort, ending=_ending_of(turns[-1], len(messages) - 1))


def _ending_of(last: Message, index: int) -> PromptEnding:
    """Return where the prompt ends. Raises InvalidInput for a response that no text can continue."""
    if last.role != "assistant":
        return "response"
    if last.tool_calls or not last.content:
        given = "a call" if last.tool_calls else "no text"
        raise InvalidInput(
            f"messages[{index}].content",
            f"expected a text that the model continues, as the message is the last, got {given}; "
            "add a message of the user",
        )
    return "last_message"


def _blocks_of(messages: Iterable[InputMessage]) -> list[Block]:
    """Return the blocks of neighbours of one role."""
    blocks: list[Block] = []
    for each in messages:
        content = each.content
        own = [TextBlock(type="text", text=content)] if isinstance(content, str) else content
        if blocks and isinstance(blocks[-1], TextBlock) and isinstance(own[0], TextBlock):
            blocks.append(_BREAK)
        blocks += own
    return blocks


def _response(blocks: Sequence[Block]) -> Message:
    """Return an earlier response: its text, its thinking and its calls."""
    return Message(
        "assistant",
        "".join(each.text for each in blocks if isinstance(each, TextBlock)),
        tuple(MessageCall(each.id, each.name, _json_of(each)) for each in blocks if isinstance(each, ToolUseBlock)),
        reasoning="".join(each.thinking for each in blocks if isinstance(each, ThinkingBlock)),
    )


def _turns_of(role: str, blocks: Iterable[Block], names: dict[str, str]) -> list[Message]:
    """Return the texts of a user as one turn between two results. `names`: of the called tools, by the id of a call."""
    turns = []
    for is_result, group in groupby(blocks, lambda each: isinstance(each, ToolResultBlock)):
        if not is_result:
            turns.append(Message(role, "".join(each.text for each in group if isinstance(each, TextBlock))))
            continue
        for each in group:
            assert isinstance(each, ToolResultBlock)
            call_id = each.tool_use_id
            turns.append(Message("tool", _text_of(each.content), (), call_id, names.get(call_id, "")))
    return turns


def _text_of(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(each.text for each in content)


def _json_of(call: ToolUseBlock) -> str:
    try:
        return orjson.dumps(call.input).decode()
    except TypeError as error:
        raise InvalidInput("messages", f"expected valid JSON as input of {call.id}, got an error: {error}") from None
