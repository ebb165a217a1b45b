"""Read server-sent events of any chunking (WHATWG HTML, section 9.2), and the pieces of a generation in them."""

from collections.abc import Iterator
from typing import Any

import orjson

MAX_EVENT_BYTES = 1024 * 1024

_DONE = b"[DONE]"


class BadStream(Exception):
    """The stream is not one of server-sent events, or an event is too long."""


class EventReader:
    """Yields the data of each event. Holds at most one event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of the events that this chunk completes. Raises BadStream for an event that is too long."""
        # A line may end in CR, LF or both. A CR at the end of the chunk may be half of a line's end.
        text = self._rest + chunk
        held = text.endswith(b"\r")
        lines = (text[:-1] if held else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + (b"\r" if held else b"")
        if len(self._rest) + self._data_bytes > MAX_EVENT_BYTES:
            raise BadStream
        for line in lines:
            if not line:
                if self._data:
                    yield b"\n".join(self._data)
                    self._data.clear()
                    self._data_bytes = 0
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._data_bytes += len(line)
                if self._data_bytes > MAX_EVENT_BYTES:
                    raise BadStream


class StreamedGeneration:
    """Times and counts of one streamed response. Takes the native form and that of OpenAI."""

    def __init__(self) -> None:
        self._events = EventReader()
        self.first_s: float | None = None
        """Time of the first event with text."""
        self.last_s = 0.0
        """Time of the last event with text."""
        self.pieces = 0
        self.tokens: int | None = None
        """As the server reports them; None if it does not."""
        self.is_done = False
        self.error: Any = None

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Read a part of the body. Raises BadStream."""
        for data in self._events.feed(chunk):
            if data == _DONE:
                self.is_done = True
                continue
            try:
                event = orjson.loads(data)
            except orjson.JSONDecodeError:
                raise BadStream from None
            if not isinstance(event, dict):
                raise BadStream
            if event.get("error") is not None:
                self.error = event
            if has_text(event):
                if self.first_s is None:
                    self.first_s = now_s
                self.last_s = now_s
                self.pieces += 1
            tokens = generated_tokens(event)
            if tokens is not None:
                self.tokens = tokens


def has_text(event: dict[str, Any]) -> bool:
    """Report whether an event has a piece of text, a piece of reasoning or a tool call."""
    if event.get("text"):
        return True
    choices = event.get("choices")
    if not isinstance(choices, list):
        return False
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if choice.get("text"):
            return True
        if isinstance(delta, dict) and any(
            delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")
        ):
            return True
    return False


def generated_tokens(answer: Any) -> int | None:
    """Return the generated tokens that a response or an event reports."""
    if not isinstance(answer, dict):
        return None
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else answer.get("tokens_generated")
    is_count = isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens < 2**31
    return tokens if is_count else None
