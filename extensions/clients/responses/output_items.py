"""Output items of a response, with the events of their beginning, of their text and of their end."""

import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

import orjson

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


class _ContentItem(OutputItem):
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


class MessageItem(_ContentItem):
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


class ReasoningItem(_ContentItem):
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


class CallItem(OutputItem):
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
