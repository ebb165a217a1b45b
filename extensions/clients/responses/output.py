"""The output items of a response, and the events of a stream that build them, from the text of the model."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.shared.chat_turns import TurnText
from app.protocols.shared.tools import new_call_id
from extensions.clients.responses.content_tokens import ContentTokens
from extensions.clients.responses.output_items import CallItem, MessageItem, OutputItem, ReasoningItem
from frameworks.generation.tools.events import CallArguments, CallBegin, Event
from frameworks.generation.types import TokenText


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
        if not self._items or (finish_reason == "stop" and isinstance(self._items[-1], ReasoningItem)):
            events += self._open(MessageItem(len(self._items)))
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
            return self._open(CallItem(len(self._items), call_id, part.name))
        kind = _kind_of(part)
        events = []
        if not (self._items and self._items[-1].is_open and type(self._items[-1]) is kind):
            assert kind is not CallItem, "the arguments of a call follow its beginning"
            events = self._open(kind(len(self._items)))
        item = self._items[-1]
        logprobs = self._logprobs() if isinstance(item, MessageItem) else []
        return [*events, item.add(part.text, logprobs)]

    def _open(self, item: OutputItem) -> list[dict[str, Any]]:
        events = self._items[-1].close("completed") if self._items and self._items[-1].is_open else []
        self._items.append(item)
        self._num_messages += isinstance(item, MessageItem)
        return events + item.opened()

    def _logprobs(self) -> list[orjson.Fragment]:
        """Return the log probabilities of the current message that are not sent yet."""
        return [] if self._tokens is None else self._tokens.take(self._num_messages - 1)

    def _late_logprobs(self) -> list[dict[str, Any]]:
        """Return an event for log probabilities without a text, as of a token that is part of a character."""
        if not self._items or not isinstance(self._items[-1], MessageItem) or not self._items[-1].is_open:
            return []
        logprobs = self._logprobs()
        return [self._items[-1].add("", logprobs)] if logprobs else []


def _kind_of(part: Event) -> type[Any]:
    if isinstance(part, CallBegin | CallArguments):
        return CallItem
    return ReasoningItem if part.kind == "reasoning" else MessageItem
