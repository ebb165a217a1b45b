"""Write the text of a model as content blocks: text, thinking and tool calls."""

import json
from collections.abc import Iterable
from typing import Any

import orjson
from pydantic_core import from_json

from app.protocols.shared.tools import new_call_id
from frameworks.core.settings.entries import ToolFormat
from frameworks.generation.tools.events import CallArguments, CallBegin, Event


class ContentBlocks:
    """The blocks of one response, as the parts of its text arrive."""

    def __init__(self, tool_format: ToolFormat | None) -> None:
        self._tool_format = tool_format
        self._kind = ""
        self.count = 0
        """Blocks that have begun."""

    def begin(self, event: Event) -> dict[str, Any] | None:
        """Return the block that an event begins, without content; None: it continues the last one."""
        block: dict[str, Any]
        if isinstance(event, CallBegin):
            block = {"type": "tool_use", "id": new_call_id(self._tool_format), "name": event.name, "input": {}}
        elif isinstance(event, CallArguments) or event.kind == self._kind:
            return None
        elif event.kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            block = {"type": "text", "text": ""}
        self._kind = "" if isinstance(event, CallBegin) else event.kind
        self.count += 1
        return block


def delta_of(event: Event) -> dict[str, str] | None:
    """Return what an event adds to its block; None for the begin of a call."""
    if isinstance(event, CallBegin):
        return None
    if isinstance(event, CallArguments):
        return {"type": "input_json_delta", "partial_json": event.text}
    if event.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": event.text}
    return {"type": "text_delta", "text": event.text}


def whole_content(events: Iterable[Event], tool_format: ToolFormat | None) -> list[dict[str, Any]]:
    """Return the blocks of a whole text. They equal those that a client collects from the stream."""
    blocks = ContentBlocks(tool_format)
    content: list[dict[str, Any]] = []
    parts: list[list[str]] = []
    for event in events:
        block = blocks.begin(event)
        if block is not None:
            content.append(block)
            parts.append([])
        if not isinstance(event, CallBegin):
            parts[-1].append(event.text)
    for block, texts in zip(content, parts, strict=True):
        text = "".join(texts)
        if block["type"] == "tool_use":
            block["input"] = _input_of(text)
        else:
            block[block["type"]] = text
    return content


def _input_of(arguments: str) -> Any:
    """Return the input of a call, to be written by orjson. The members of an input that was cut off are kept, as
    Anthropic's client does with a stream; of what is no JSON, nothing.
    """
    try:
        orjson.loads(arguments)
        return orjson.Fragment(arguments.encode())
    except orjson.JSONDecodeError:
        pass
    try:
        return orjson.Fragment(json.dumps(from_json(arguments, allow_inf_nan=False, allow_partial=True)).encode())
    except ValueError:
        return {}
