"""Split the text of a model into reasoning, content and tool calls, as it arrives.

The events of a text do not depend on how it is cut: their texts, joined, are the same.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import groupby

from frameworks.generation.tools.call_reader import CallReader, Cursor, Reading
from frameworks.generation.tools.events import CallBegin, Event, TextPart
from frameworks.generation.tools.formats import (
    END_OF_THINKING,
    PYTHON_TAG,
    PYTHONIC_BEGINS,
    THINK,
    TOOL_CALLS,
    TextFormat,
)
from frameworks.generation.tools.json_scanner import skip_space

_BEGINS: dict[str | None, tuple[str, ...]] = {
    "hermes": ("<tool_call>",),
    "llama3_json": (PYTHON_TAG,),
    "mistral": (TOOL_CALLS,),
    "mistral_args": (TOOL_CALLS,),
    "pythonic": PYTHONIC_BEGINS,
    None: (),
}
# First character of a call without a mark, at the beginning of the content.
_BARE_BEGINS = {"llama3_json": "{", "pythonic": "["}


class ResponseParser:
    """Parse one text. Used by one thread."""

    def __init__(self, text_format: TextFormat, tool_names: Collection[str] = (), max_calls: int | None = None) -> None:
        """`tool_names`: a text that begins like a call without a mark is one only with such a name. `max_calls`: later
        calls are left out.
        """
        self._cursor = Cursor()
        self._events: list[Event] = []
        self._calls = CallReader(self._cursor, text_format.tools, tool_names, max_calls, self._events)
        self._space = ""
        self._is_stripped = False
        self._begins = _BEGINS[text_format.tools]
        self._bare_begin = _BARE_BEGINS.get(text_format.tools or "", "")
        self._state: Callable[[], bool] = self._read_start if text_format.thinks else self._read_content

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._calls.num_begun > 0

    def push(self, text: str) -> list[Event]:
        """Return the events that some more text completes."""
        self._cursor.push(text)
        while not self._cursor.is_at_end and self._state():
            pass
        return self._take_events()

    def finish(self, is_cut: bool) -> list[Event]:
        """Return the events of what was held back, at the end of the text.

        `is_cut`: the model would have continued the text. The beginning of a mark or of a call is then left out.
        """
        rest = self._cursor.take_rest()
        if is_cut and self._drop_beginning(rest):
            pass
        elif self._state == self._read_thinking:
            self._give("reasoning", rest)
        elif self._cursor.raw is not None:
            self._fall_back(rest)
        elif self._state != self._read_calls:
            self._give("content", rest)
        if self._space and not self.has_calls and self._state != self._read_thinking:
            self._events.append(TextPart("content", self._space))
        return self._take_events()

    def _drop_beginning(self, rest: str) -> bool:
        """Leave out what may become a mark or a call; return whether the text ends with it."""
        if self._cursor.raw is not None:
            is_dropped = self._calls.may_be_call()
        else:
            is_dropped = self._state != self._read_calls and bool(rest.strip())
        if is_dropped:
            self._cursor.raw, self._space = None, ""
        return is_dropped

    def _take_events(self) -> list[Event]:
        events = list(_joined(self._events))
        self._events.clear()
        return events

    def _read_start(self) -> bool:
        """Read up to where it is known whether the text begins with thinking."""
        cursor = self._cursor
        begin = skip_space(cursor.text, cursor.position)
        seen = cursor.text[begin : begin + len(THINK)]
        if len(seen) < len(THINK) and THINK.startswith(seen):
            return False
        self._state = self._read_content
        if seen == THINK:
            cursor.move_to(begin + len(THINK))
            self._state = self._read_thinking
            self._is_stripped = True
        return True

    def _read_thinking(self) -> bool:
        if self._read_up_to((END_OF_THINKING,), "reasoning") is None:
            return False
        self._space, self._is_stripped = "", True
        self._state = self._read_content
        return True

    def _read_content(self) -> bool:
        cursor = self._cursor
        if self._bare_begin:
            begin = skip_space(cursor.text, cursor.position)
            if begin == len(cursor.text):
                return False
            bare, self._bare_begin = self._bare_begin, ""
            if cursor.text[begin] == bare:
                space = cursor.text[cursor.position : begin]
                cursor.move_to(begin)
                self._calls.begin_bare(space)
                self._state = self._read_calls
                return True
        mark = self._read_up_to(self._begins, "content")
        if mark is None:
            return False
        self._calls.begin_after(mark)
        self._state = self._read_calls
        return True

    def _read_calls(self) -> bool:
        num_before = self._calls.num_begun
        reading = self._calls.read()
        if self._calls.num_begun > num_before:
            self._space = ""
        match reading:
            case Reading.WAITS:
                return False
            case Reading.ENDS:
                self._state = self._read_content
            case Reading.ENDS_BEFORE_BARE_CALL:
                self._state = self._read_content
                self._bare_begin = "{"
            case Reading.FAILS:
                self._fall_back("")
        return True

    def _fall_back(self, rest: str) -> None:
        """Take the text of what turned out to be no call as content."""
        raw, self._cursor.raw = self._cursor.raw, None
        self._state = self._read_content
        self._give("content", "".join(raw or ()) + rest)

    def _read_up_to(self, marks: Iterable[str], kind: str) -> str | None:
        """Give the text before the first mark and move behind it; None if no mark is complete."""
        cursor = self._cursor
        found = [(at, mark) for mark in marks if (at := cursor.text.find(mark, cursor.position)) >= 0]
        if not found:
            end = self._end_of_certain(marks)
            self._give(kind, cursor.text[cursor.position : end])
            cursor.move_to(end)
            return None
        at, mark = min(found)
        self._give(kind, cursor.text[cursor.position : at])
        cursor.move_to(at + len(mark))
        return mark

    def _end_of_certain(self, marks: Iterable[str]) -> int:
        """Return the position up to which the text holds no beginning of a mark."""
        text = self._cursor.text
        held = 0
        for mark in marks:
            for length in range(min(len(mark) - 1, len(text) - self._cursor.position), held, -1):
                if text.endswith(mark[:length]):
                    held = length
                    break
        return len(text) - held

    def _give(self, kind: str, text: str) -> None:
        """Add text. White space waits for the text behind it: before a call and after thinking it is left out."""
        stripped = text.rstrip()
        if not stripped:
            if not self._is_stripped:
                self._space += text
            return
        if self._is_stripped:
            stripped, self._is_stripped = stripped.lstrip(), False
        self._events.append(TextPart("reasoning" if kind == "reasoning" else "content", self._space + stripped))
        self._space = text[len(text.rstrip()) :]


def _joined(events: list[Event]) -> Iterable[Event]:
    """Join neighbours of one kind, and leave out empty texts."""
    for _, group in groupby(events, lambda event: (type(event), event[0])):
        first, *others = group
        if isinstance(first, CallBegin):
            yield first
            continue
        text = "".join(each.text for each in (first, *others) if not isinstance(each, CallBegin))
        if text:
            yield first._replace(text=text)
