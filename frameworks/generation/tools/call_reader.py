"""Read the tool calls behind a mark, in the format of a family, as their text arrives."""

from collections.abc import Callable, Collection
from enum import Enum, auto

from frameworks.core.settings.entries import ToolFormat
from frameworks.generation.tools.events import CallArguments, CallBegin, Event
from frameworks.generation.tools.formats import ARGS, CALL_ID, PYTHONIC_ENDS
from frameworks.generation.tools.json_scanner import CallScanner, ValueScanner, skip_space
from frameworks.generation.tools.pythonic_scanner import PythonicScanner


class Cursor:
    """`text`: the pieces that are not read yet, from `position`. `raw`: what was read of a text that may be no call."""

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.raw: list[str] | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether all text has been read."""
        return self.position == len(self.text)

    @property
    def character(self) -> str:
        """The next character. The cursor is not at the end."""
        return self.text[self.position]

    def push(self, text: str) -> None:
        """Add a piece."""
        self.text = self.text[self.position :] + text
        self.position = 0

    def take_rest(self) -> str:
        """Return the text that is not read, and remove it."""
        rest = self.text[self.position :]
        self.text, self.position = "", 0
        return rest

    def peek(self, count: int) -> str:
        """Return up to `count` next characters."""
        return self.text[self.position : self.position + count]

    def move(self, count: int) -> None:
        """Read `count` characters."""
        self.move_to(self.position + count)

    def move_to(self, position: int) -> None:
        """Read the text up to `position`."""
        if self.raw is not None:
            self.raw.append(self.text[self.position : position])
        self.position = position

    def skip_space(self) -> bool:
        """Read white space; return whether something follows it."""
        self.move_to(skip_space(self.text, self.position))
        return not self.is_at_end

    def take_before(self, mark: str) -> tuple[str, bool]:
        """Read the text before a mark; return it, and whether the mark follows."""
        at = self.text.find(mark, self.position)
        part = self.text[self.position : at if at >= 0 else None]
        self.move(len(part))
        return part, at >= 0


class Reading(Enum):
    """The outcome of `CallReader.read`."""

    WAITS = auto()
    """More text is needed."""
    CONTINUES = auto()
    ENDS = auto()
    """Content follows."""
    ENDS_BEFORE_BARE_CALL = auto()
    """Content follows, or another call without a mark."""
    FAILS = auto()
    """The text since the mark is no call: `raw` of the cursor has it, unless a call had begun."""


class CallReader:
    """Read the calls of one text from `cursor`, and add their events to `events`."""

    def __init__(
        self,
        cursor: Cursor,
        tools_format: ToolFormat | None,
        tool_names: Collection[str],
        max_calls: int | None,
        events: list[Event],
    ) -> None:
        """`tool_names`: a call without a mark is one only with such a name. `max_calls`: later calls are left out."""
        self.num_begun = 0
        self._cursor = cursor
        self._format = tools_format
        self._tool_names = tool_names
        self._max_calls = max_calls
        self._events = events
        self._scanner: CallScanner | PythonicScanner | None = None
        self._arguments: ValueScanner | None = None
        self._name: list[str] = []
        self._is_list = False
        self._state: Callable[[], Reading] = self._read_after_mark

    def begin_after(self, mark: str) -> None:
        """Expect a call behind this mark, which has been read."""
        self._cursor.raw = [mark]
        self._scanner, self._is_list = None, False
        self._state = self._read_after_mark

    def begin_bare(self, space: str) -> None:
        """Expect a call without a mark, behind white space that has been read."""
        self._cursor.raw = [space]
        self._scanner, self._is_list = None, False
        self._begin_calls()

    def read(self) -> Reading:
        """Read some of the text at the cursor, which is not at its end."""
        return self._state()

    def _read_after_mark(self) -> Reading:
        """Read white space behind the mark, and decide the form of the call behind it."""
        if not self._cursor.skip_space():
            return Reading.WAITS
        first = self._cursor.character
        if self._format in ("mistral", "mistral_args"):
            if first == "[":
                self._is_list = True
                self._cursor.move(1)
                self._state = self._read_next_of_list
            elif first == "{":
                self._begin_calls()
            else:
                self._name = []
                self._state = self._read_bare_name
            return Reading.CONTINUES
        if self._format == "pythonic" and first != "[":
            return Reading.FAILS
        self._begin_calls()
        return Reading.CONTINUES

    def _begin_calls(self) -> None:
        if self._format == "pythonic":
            self._cursor.move(1)
            self._scanner = PythonicScanner(self._begin_call, self._add_arguments)
        else:
            self._scanner = CallScanner(self._begin_call, self._add_arguments)
        self._state = self._read_call

    def _read_call(self) -> Reading:
        scanner, cursor = self._scanner, self._cursor
        assert scanner is not None
        start = cursor.position
        cursor.move_to(scanner.feed(cursor.text, start))
        if scanner.has_failed:
            return Reading.FAILS
        return self._end_call() if scanner.is_over else Reading.WAITS

    def _end_call(self) -> Reading:
        self._scanner = self._arguments = None
        if self._is_list:
            self._state = self._read_next_of_list
        elif self._format == "llama3_json":
            self._state = self._read_separator
        elif self._format in ("hermes", "pythonic"):
            self._state = self._read_end_mark
        else:
            return Reading.ENDS
        return Reading.CONTINUES

    def _read_end_mark(self) -> Reading:
        ends = ("</tool_call>",) if self._format == "hermes" else PYTHONIC_ENDS
        if not self._cursor.skip_space():
            return Reading.WAITS
        rest = self._cursor.peek(max(map(len, ends)))
        if any(len(rest) < len(end) and end.startswith(rest) for end in ends):
            return Reading.WAITS
        self._cursor.move(next((len(end) for end in ends if rest.startswith(end)), 0))
        return Reading.ENDS

    def _read_separator(self) -> Reading:
        """Read the `;` between two calls of Llama."""
        if not self._cursor.skip_space():
            return Reading.WAITS
        if self._cursor.character != ";":
            return Reading.ENDS
        self._cursor.move(1)
        return Reading.ENDS_BEFORE_BARE_CALL

    def _read_next_of_list(self) -> Reading:
        """Read up to the next call of Mistral's list, or its end."""
        if not self._cursor.skip_space():
            return Reading.WAITS
        match self._cursor.character:
            case "{":
                self._scanner = CallScanner(self._begin_call, self._add_arguments)
                self._state = self._read_call
            case ",":
                self._cursor.move(1)
            case "]":
                self._cursor.move(1)
                return Reading.ENDS if self._cursor.raw is None else Reading.FAILS
            case _:
                return Reading.FAILS
        return Reading.CONTINUES

    def _read_bare_name(self) -> Reading:
        """Read the name between `[TOOL_CALLS]` and `[ARGS]`, and leave out the id between them."""
        part, is_complete = self._cursor.take_before("{")
        self._name.append(part)
        if not is_complete:
            return Reading.WAITS
        name = "".join(self._name).replace(ARGS, "", 1).partition(CALL_ID)[0].strip()
        if not name or not self._begin_call(name):
            return Reading.FAILS
        self._arguments = ValueScanner()
        self._state = self._read_arguments
        return Reading.CONTINUES

    def _read_arguments(self) -> Reading:
        arguments, cursor = self._arguments, self._cursor
        assert arguments is not None
        start = cursor.position
        cursor.move_to(arguments.feed(cursor.text, start))
        self._add_arguments(cursor.text[start : cursor.position])
        return self._end_call() if arguments.is_over else Reading.WAITS

    def may_be_call(self) -> bool:
        """Return whether the text since the mark, or since the beginning without a mark, may become a call."""
        return self._scanner is None or not self._is_first_without_mark() or self._scanner.may_be_call(self._tool_names)

    def _is_first_without_mark(self) -> bool:
        raw = self._cursor.raw
        return self.num_begun == 0 and raw is not None and raw[0].strip() == ""

    def _begin_call(self, name: str) -> bool:
        if self._is_first_without_mark() and self._tool_names and name not in self._tool_names:
            return False
        self._cursor.raw = None
        self.num_begun += 1
        if self._is_wanted():
            self._events.append(CallBegin(self.num_begun - 1, name))
        return True

    def _add_arguments(self, text: str) -> None:
        if self._is_wanted():
            self._events.append(CallArguments(self.num_begun - 1, text))

    def _is_wanted(self) -> bool:
        return self._max_calls is None or self.num_begun <= self._max_calls
