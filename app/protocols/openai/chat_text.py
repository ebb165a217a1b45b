"""Write the text of a chat response: content, reasoning and tool calls, whole or as deltas."""

from typing import Any

from app.protocols.shared.chat_turns import TurnText
from app.protocols.shared.tools import new_call_id
from frameworks.generation.tools.events import CallArguments, CallBegin, Event
from frameworks.generation.types import GenerateRequest


class ChatText:
    """The text of one choice, parsed. `max_calls`, `tool_names`: of the request's tools."""

    def __init__(self, request: GenerateRequest, tool_names: frozenset[str], max_calls: int | None) -> None:
        self._turn = TurnText(request, tool_names, max_calls)

    def push(self, text: str) -> list[dict[str, Any]]:
        """Return the deltas that some more text completes."""
        return [self._delta(event) for event in self._turn.push(text)]

    def finish(self, finish_reason: str) -> list[dict[str, Any]]:
        """Return the last deltas."""
        return [self._delta(event) for event in self._turn.finish(finish_reason)]

    def reason(self, finish_reason: str) -> str:
        """Return OpenAI's finish_reason."""
        return "tool_calls" if finish_reason == "stop" and self._turn.has_calls else finish_reason

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        """Return the message of a whole text, with the members of all deltas."""
        texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        calls: list[dict[str, Any]] = []
        arguments: list[list[str]] = []
        for delta in self.push(text) + self.finish(finish_reason):
            for call in delta.pop("tool_calls", ()):
                if "id" in call:
                    arguments.append([])
                    calls.append(call)
                arguments[call["index"]].append(call["function"]["arguments"])
            for name, part in delta.items():
                texts[name].append(part)
        content = "".join(texts["content"])
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._turn.format.thinks:
            message["reasoning_content"] = "".join(texts["reasoning_content"]) or None
        if calls:
            message["content"] = content or None
            for call, parts in zip(calls, arguments, strict=True):
                del call["index"]
                call["function"]["arguments"] = "".join(parts)
            message["tool_calls"] = calls
        return message

    def _delta(self, event: Event) -> dict[str, Any]:
        if isinstance(event, CallBegin):
            function = {"name": event.name, "arguments": ""}
            call_id = new_call_id(self._turn.format.tools)
            return {"tool_calls": [{"index": event.call, "id": call_id, "type": "function", "function": function}]}
        if isinstance(event, CallArguments):
            return {"tool_calls": [{"index": event.call, "function": {"arguments": event.text}}]}
        return {"reasoning_content" if event.kind == "reasoning" else "content": event.text}
