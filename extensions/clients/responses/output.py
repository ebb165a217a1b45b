"""The output of a response: its items, and the events of a stream that build them."""

import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

import orjson

from app.protocols.shared.chat_turns import TurnText
from app.protocols.shared.tools import new_call_id
from extensions.clients.responses.content_tokens import ContentTokens
from frameworks.generation.tools.events import CallArguments, CallBegin, Event
from frameworks.generation.types import TokenText

Shown = dict[str, Any]


class OutputItem:
    """An item that grows. `index`: in the output. `logprobs` are JSON of the items of `output_text`."""

    prefix: ClassVar[str]

    def __init__(self, index: int) -> None:
        self.id = f"{self.prefix}_{secrets.token_hex(16)}"
        self.index = index
        self.status = "in_progress"
        self._texts: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether more text may follow."""
        return self.status == "in_progress"

    @property
    def text(self) -> str:
        """The whole text."""
        self._texts = ["".join(self._texts)]
        return self._texts[0]

    def opened(self) -> list[Shown]:
        """Return the events of an item without text."""
        return [{"type": "response.output_item.added", "output_index": self.index, "item": self.empty()}]

    def add(self, text: str, logprobs: Sequence[orjson.Fragment]) -> Shown:
        """Add some text; return its event."""
        raise NotImplementedError

    def close(self, status: str) -> list[Shown]:
        """Set the last status; return the events of the end."""
        self.status = status
        return [
            *self._text_ended(),
            {"type": "response.output_item.done", "output_index": self.index, "item": self.shown()},
        ]

    def empty(self) -> Shown:
        """Return the item before its text."""
        raise NotImplementedError

    def shown(self) -> Shown:
        """Return the item with its text."""
        raise NotImplementedError

    def _text_ended(self) -> list[Shown]:
        raise NotImplementedError

    def _event(self, kind: str, **fields: Any) -> Shown:
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.index, **fields}


class _ContentOutput(OutputItem):
    """An item with one part of content. `part_kind`: its type, and the name of its events."""

    part_kind: ClassVar[str]

    def opened(self) -> list[Shown]:
        part = self._part()
        return [*super().opened(), self._event("content_part.added", content_index=0, part=part)]

    def add(self, text: str, logprobs: Sequence[orjson.Fragment]) -> Shown:
        self._texts.append(text)
        return self._event(f"{self.part_kind}.delta", content_index=0, delta=text, **self._more_of(logprobs))

    def shown(self) -> Shown:
        return {**self.empty(), "content": [self._part()]}

    def _text_ended(self) -> list[Shown]:
        part = self._part()
        more = {name: part[name] for name in self._more_of(())}
        return [
            self._event(f"{self.part_kind}.done", content_index=0, text=part["text"], **more),
            self._event("content_part.done", content_index=0, part=part),
        ]

    def _part(self) -> Shown:
        return {"type": self.part_kind, "text": self.text}

    def _more_of(self, logprobs: Sequence[orjson.Fragment]) -> Shown:
        """Return further members of the events of the text."""
        return {}


class MessageOutput(_ContentOutput):
    """Content."""

    prefix = "msg"
    part_kind = "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[orjson.Fragment] = []

    def add(self, text: str, logprobs: Sequence[orjson.Fragment]) -> Shown:
        self._logprobs += logprobs
        return super().add(text, logprobs)

    def empty(self) -> Shown:
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": []}

    def _part(self) -> Shown:
        return {**super()._part(), "annotations": [], "logprobs": [*self._logprobs]}

    def _more_of(self, logprobs: Sequence[orjson.Fragment]) -> Shown:
        return {"logprobs": logprobs}


class ReasoningOutput(_ContentOutput):
    """The thinking before the content."""

    prefix = "rs"
    part_kind = "reasoning_text"

    def empty(self) -> Shown:
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": [],
            "content": [],
            "encrypted_content": None,
        }


class CallOutput(OutputItem):
    """A function call."""

    prefix = "fc"

    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__(index)
        self._call_id = call_id
        self._name = name

    def add(self, text: str, logprobs: Sequence[orjson.Fragment]) -> Shown:
        self._texts.append(text)
        return self._event("function_call_arguments.delta", delta=text)

    def empty(self) -> Shown:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "",
        }

    def shown(self) -> Shown:
        return {**self.empty(), "arguments": self.text}

    def _text_ended(self) -> list[Shown]:
        return [self._event("function_call_arguments.done", arguments=self.text)]


class Output:
    """The output of one response, whole or as events. Used by one thread."""

    def __init__(self, turn: TurnText, tokens: ContentTokens | None) -> None:
        """`tokens`: for the log probabilities; None: without them."""
        self._turn = turn
        self._tokens = tokens
        self._items: list[OutputItem] = []
        self._num_messages = 0

    def push(self, text: str, tokens: Sequence[TokenText]) -> list[dict[str, Any]]:
        """Return the events of some more text. `tokens`: of this text, if it has log probabilities."""
        if self._tokens is not None:
            self._tokens.push(tokens)
        return [event for part in self._turn.push(text) for event in self._apply(part)] + self._late_logprobs()

    def finish(self, finish_reason: str) -> list[dict[str, Any]]:
        """Return the last events. A text that has ended without calls is a message, even if it is empty."""
        if self._tokens is not None:
            self._tokens.finish(finish_reason)
        events = [event for part in self._turn.finish(finish_reason) for event in self._apply(part)]
        if not self._items or (finish_reason == "stop" and isinstance(self._items[-1], ReasoningOutput)):
            events += self._open(MessageOutput(len(self._items)))
        events += self._late_logprobs()
        return events + self._items[-1].close("incomplete" if finish_reason == "length" else "completed")

    def shown(self) -> list[dict[str, Any]]:
        """Return the items."""
        return [item.shown() for item in self._items]

    def fail(self) -> None:
        """Mark the last item as incomplete, if it is not complete."""
        if self._items and self._items[-1].is_open:
            self._items[-1].status = "incomplete"

    def _apply(self, part: Event) -> list[dict[str, Any]]:
        if isinstance(part, CallBegin):
            call_id = new_call_id(self._turn.format.tools)
            return self._open(CallOutput(len(self._items), call_id, part.name))
        kind = _kind_of(part)
        events = []
        if not (self._items and self._items[-1].is_open and type(self._items[-1]) is kind):
            assert kind is not CallOutput, "the arguments of a call follow its beginning"
            events = self._open(kind(len(self._items)))
        item = self._items[-1]
        logprobs = self._logprobs() if isinstance(item, MessageOutput) else []
        return [*events, item.add(part.text, logprobs)]

    def _open(self, item: OutputItem) -> list[dict[str, Any]]:
        events = self._items[-1].close("completed") if self._items and self._items[-1].is_open else []
        self._items.append(item)
        self._num_messages += isinstance(item, MessageOutput)
        return events + item.opened()

    def _logprobs(self) -> list[orjson.Fragment]:
        """Return the log probabilities of the current message that are not sent yet."""
        return [] if self._tokens is None else self._tokens.take(self._num_messages - 1)

    def _late_logprobs(self) -> list[dict[str, Any]]:
        """Return an event for log probabilities without a text, as of a token that is part of a character."""
        if not self._items or not isinstance(self._items[-1], MessageOutput) or not self._items[-1].is_open:
            return []
        logprobs = self._logprobs()
        return [self._items[-1].add("", logprobs)] if logprobs else []


def _kind_of(part: Event) -> type[Any]:
    if isinstance(part, CallBegin | CallArguments):
        return CallOutput
    return ReasoningOutput if part.kind == "reasoning" else MessageOutput
