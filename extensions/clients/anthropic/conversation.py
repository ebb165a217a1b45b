"""Turn the messages of Anthropic's API into the turns that chat templates know."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import orjson

from app.protocols.shared.fields.message_content import Content
from extensions.clients.anthropic.blocks import (
    Block,
    ImageBlock,
    ImageUrlSource,
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


class _FieldBlock(NamedTuple):
    """A block, and its field in the request."""

    block: Block
    field: str


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
    numbered = list(enumerate(messages))
    for role, group in groupby(numbered, lambda each: each[1].role):
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


def _blocks_of(messages: Iterable[tuple[int, InputMessage]]) -> list[_FieldBlock]:
    """Return the blocks of neighbours of one role, with the field of each. `messages`: with their indices."""
    blocks: list[_FieldBlock] = []
    for number, each in messages:
        content = each.content
        own = [TextBlock(type="text", text=content)] if isinstance(content, str) else content
        if blocks and isinstance(blocks[-1].block, TextBlock) and isinstance(own[0], TextBlock):
            blocks.append(_FieldBlock(_BREAK, ""))
        blocks += [_FieldBlock(block, f"messages[{number}].content[{index}]") for index, block in enumerate(own)]
    return blocks


def _response(given: Sequence[_FieldBlock]) -> Message:
    """Return an earlier response: its text, its thinking and its calls."""
    blocks = [each.block for each in given]
    return Message(
        "assistant",
        "".join(each.text for each in blocks if isinstance(each, TextBlock)),
        tuple(MessageCall(each.id, each.name, _json_of(each)) for each in blocks if isinstance(each, ToolUseBlock)),
        reasoning="".join(each.thinking for each in blocks if isinstance(each, ThinkingBlock)),
    )


def _turns_of(role: str, blocks: Iterable[_FieldBlock], names: dict[str, str]) -> list[Message]:
    """Return texts and images of a user as one turn between two results. `names`: of the called tools, by the id of a
    call.
    """
    turns = []
    for is_result, group in groupby(blocks, lambda each: isinstance(each.block, ToolResultBlock)):
        if not is_result:
            content = _content_of(group)
            turns.append(Message(role, content.text, images=content.images))
            continue
        for block, field in group:
            assert isinstance(block, ToolResultBlock)
            parts = [TextBlock(type="text", text=block.content)] if isinstance(block.content, str) else block.content
            content = _content_of(_FieldBlock(each, f"{field}.content[{i}]") for i, each in enumerate(parts))
            call_id = block.tool_use_id
            turns.append(Message("tool", content.text, (), call_id, names.get(call_id, ""), images=content.images))
    return turns


def _content_of(blocks: Iterable[_FieldBlock]) -> Content:
    """Return the texts and images of blocks. Raises InvalidInput."""
    content = Content()
    for block, field in blocks:
        if isinstance(block, TextBlock):
            content.add_text(block.text)
        elif isinstance(block, ImageBlock):
            source = block.source
            if isinstance(source, ImageUrlSource):
                content.add_url(source.url, f"{field}.source.url")
            else:
                content.add_image(source.data, f"{field}.source.data")
    return content


def _text_of(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(each.text for each in content)


def _json_of(call: ToolUseBlock) -> str:
    try:
        return orjson.dumps(call.input).decode()
    except TypeError as error:
        raise InvalidInput("messages", f"expected valid JSON as input of {call.id}, got an error: {error}") from None
