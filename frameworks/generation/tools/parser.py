"""Split the text of a model into reasoning, content and tool calls, as it arrives.

The events of a text do not depend on how it is cut: their texts, joined, are the same.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import groupby

from frameworks.generation.tools.events import CallArguments, CallBegin, Event, TextPart
from frameworks.generation.tools.formats import (
    ARGS,
    CALL_ID,
    END_OF_THINKING,
    PYTHON_TAG,
    PYTHONIC_BEGINS,
    PYTHONIC_ENDS,
    THINK,
    TOOL_CALLS,
    TextFormat,
)
from frameworks.generation.tools.json_scanner import CallScanner, ValueScanner, skip_space
from frameworks.generation.tools.pythonic_scanner import PythonicScanner

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
        self._format = text_format
        self._tool_names = tool_names
        self._max_calls = max_calls
        self._buffer = ""
        self._position = 0
        self._events: list[Event] = []
        self._space = ""
        self._is_stripped = False
        self._raw: list[str] | None = None
        self._num_begun = 0
        self._scanner: CallScanner | PythonicScanner | None = None
        self._arguments: ValueScanner | None = None
        self._name: list[str] = []
        self._is_list = False
        self._begins = _BEGINS[text_format.tools]
        self._bare_begin = _BARE_BEGINS.get(text_format.tools or "", "")
        self._state: Callable[[], bool] = self._read_start if text_format.thinks else self._read_content

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._num_begun > 0

    def push(self, text: str) -> list[Event]:
        """Return the events that some more text completes."""
        self._buffer = self._buffer[self._position :] + text
        self._position = 0
        while self._position < len(self._buffer) and self._state():
            pass
        return self._take_events()

    def finish(self) -> list[Event]:
        """Return the events of what was held back, at the end of the text."""
        rest = self._buffer[self._position :]
        self._buffer, self._position = "", 0
        if self._state == self._read_thinking:
            self._give("reasoning", rest)
        elif self._raw is not None:
            self._fall_back(rest)
        elif self._state in (self._read_start, self._read_content):
            self._give("content", rest)
        if self._space and not self._num_begun and self._state != self._read_thinking:
            self._events.append(TextPart("content", self._space))
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return list(_joined(events))

    # Text

    def _read_start(self) -> bool:
        """Read up to where it is known whether the text begins with thinking."""
        begin = skip_space(self._buffer, self._position)
        seen = self._buffer[begin : begin + len(THINK)]
        if len(seen) < len(THINK) and THINK.startswith(seen):
            return False
        self._state = self._read_content
        if seen == THINK:
            self._position = begin + len(THINK)
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
        if self._bare_begin:
            begin = skip_space(self._buffer, self._position)
            if begin == len(self._buffer):
                return False
            bare, self._bare_begin = self._bare_begin, ""
            if self._buffer[begin] == bare:
                self._raw = [self._buffer[self._position : begin]]
                self._position = begin
                self._begin_calls()
                return True
        mark = self._read_up_to(self._begins, "content")
        if mark is None:
            return False
        self._raw = [mark]
        self._state = self._read_after_mark
        return True

    def _read_up_to(self, marks: Iterable[str], kind: str) -> str | None:
        """Give the text before the first mark and move behind it; None if no mark is complete."""
        found = [(at, mark) for mark in marks if (at := self._buffer.find(mark, self._position)) >= 0]
        if not found:
            end = self._end_of_certain(marks)
            self._give(kind, self._buffer[self._position : end])
            self._position = end
            return None
        at, mark = min(found)
        self._give(kind, self._buffer[self._position : at])
        self._position = at + len(mark)
        return mark

    def _end_of_certain(self, marks: Iterable[str]) -> int:
        """Return the position up to which the buffer holds no beginning of a mark."""
        size = len(self._buffer)
        held = 0
        for mark in marks:
            for length in range(min(len(mark) - 1, size - self._position), held, -1):
                if self._buffer.endswith(mark[:length]):
                    held = length
                    break
        return size - held

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

    # Calls

    def _read_after_mark(self) -> bool:
        """Read white space behind the mark, and decide the form of the call behind it."""
        if not self._skip_raw_space():
            return False
        first = self._buffer[self._position]
        if self._format.tools in ("mistral", "mistral_args"):
            if first == "[":
                self._is_list = True
                self._move(1)
                self._state = self._read_next_of_list
            elif first == "{":
                self._begin_calls()
            else:
                self._name = []
                self._state = self._read_bare_name
            return True
        if self._format.tools == "pythonic" and first != "[":
            return self._fall_back("")
        self._begin_calls()
        return True

    def _begin_calls(self) -> None:
        if self._format.tools == "pythonic":
            self._move(1)
            self._scanner = PythonicScanner(self._begin_call, self._give_arguments)
        else:
            self._scanner = CallScanner(self._begin_call, self._give_arguments)
        self._state = self._read_call

    def _read_call(self) -> bool:
        scanner = self._scanner
        assert scanner is not None
        start = self._position
        self._position = scanner.feed(self._buffer, start)
        if self._raw is not None:
            self._raw.append(self._buffer[start : self._position])
        if scanner.has_failed:
            return self._fall_back("")
        if not scanner.is_over:
            return False
        self._end_call()
        return True

    def _end_call(self) -> None:
        self._scanner = self._arguments = None
        if self._is_list:
            self._state = self._read_next_of_list
        elif self._format.tools == "llama3_json":
            self._state = self._read_separator
        elif self._format.tools in ("hermes", "pythonic"):
            self._state = self._read_end_mark
        else:
            self._state = self._read_content

    def _read_end_mark(self) -> bool:
        ends = ("</tool_call>",) if self._format.tools == "hermes" else PYTHONIC_ENDS
        if not self._skip_raw_space():
            return False
        rest = self._buffer[self._position : self._position + max(map(len, ends))]
        if any(len(rest) < len(end) and end.startswith(rest) for end in ends):
            return False
        self._position += next((len(end) for end in ends if rest.startswith(end)), 0)
        self._state = self._read_content
        return True

    def _read_separator(self) -> bool:
        """Read the `;` between two calls of Llama."""
        if not self._skip_raw_space():
            return False
        self._state = self._read_content
        if self._buffer[self._position] == ";":
            self._position += 1
            self._bare_begin = "{"
        return True

    def _read_next_of_list(self) -> bool:
        """Read up to the next call of Mistral's list, or its end."""
        if not self._skip_raw_space():
            return False
        match self._buffer[self._position]:
            case "{":
                self._scanner = CallScanner(self._begin_call, self._give_arguments)
                self._state = self._read_call
            case ",":
                self._move(1)
            case "]":
                self._move(1)
                self._is_list = False
                if self._raw is not None:
                    return self._fall_back("")
                self._state = self._read_content
            case _:
                self._is_list = False
                return self._fall_back("")
        return True

    def _read_bare_name(self) -> bool:
        """Read the name between `[TOOL_CALLS]` and `[ARGS]`, and leave out the id between them."""
        start = self._buffer.find("{", self._position)
        part = self._buffer[self._position : start if start >= 0 else None]
        self._name.append(part)
        self._move(len(part))
        if start < 0:
            return False
        name = "".join(self._name).replace(ARGS, "", 1).partition(CALL_ID)[0].strip()
        if not name or not self._begin_call(name):
            return self._fall_back("")
        self._arguments = ValueScanner()
        self._state = self._read_arguments
        return True

    def _read_arguments(self) -> bool:
        assert self._arguments is not None
        start = self._position
        self._position = self._arguments.feed(self._buffer, start)
        self._give_arguments(self._buffer[start : self._position])
        if not self._arguments.is_over:
            return False
        self._end_call()
        return True

    def _begin_call(self, name: str) -> bool:
        is_bare = self._num_begun == 0 and self._raw is not None and self._raw[0].strip() == ""
        if is_bare and self._tool_names and name not in self._tool_names:
            return False
        self._raw = None
        self._space = ""
        self._num_begun += 1
        if self._is_wanted():
            self._events.append(CallBegin(self._num_begun - 1, name))
        return True

    def _give_arguments(self, text: str) -> None:
        if self._is_wanted():
            self._events.append(CallArguments(self._num_begun - 1, text))

    def _is_wanted(self) -> bool:
        return self._max_calls is None or self._num_begun <= self._max_calls

    def _fall_back(self, rest: str) -> bool:
        """Take the text of what turned out to be no call as content."""
        raw, self._raw = self._raw, None
        self._scanner, self._is_list = None, False
        self._state = self._read_content
        self._give("content", "".join(raw or ()) + rest)
        return True

    def _skip_raw_space(self) -> bool:
        """Move behind white space; return whether something follows it."""
        self._move(skip_space(self._buffer, self._position) - self._position)
        return self._position < len(self._buffer)

    def _move(self, count: int) -> None:
        if self._raw is not None:
            self._raw.append(self._buffer[self._position : self._position + count])
        self._position += count


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
