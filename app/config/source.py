"""The document that file, environment and flags make together, and where each value in it was written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from app.config.faults import Fault, FaultKind, Location, dotted, shown
from app.config.lines import key_lines

OTHER_NAMES: Mapping[tuple[str, str], tuple[str, str]] = {("models", "candle_models"): ("models", "torch_models")}
"""Tables with a second name: both together are the one table."""

_LARGEST_FILE = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written."""

    origin: str
    line: int | None = None


@dataclass(slots=True)
class Source:
    """A document of nested tables in the making, the place of each value in it, and what went wrong on the way."""

    origin: str
    document: dict[str, Any] = field(default_factory=dict)
    places: dict[Location, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    other_names: dict[Location, Location] = field(default_factory=dict)
    """A location in the document → the location as it was written, for what merge_other_names moved."""

    def fault(self, location: Location, message: str, kind: FaultKind) -> None:
        """Adds a fault about the value at `location` of the document."""
        location = self.as_written(location)
        place = self.place(location)
        self.faults.append(Fault(place.origin, place.line, dotted(location), message, kind))

    def faults_in_order(self) -> tuple[Fault, ...]:
        """The faults as a reader of the file meets them, then those of environment and flags."""
        return tuple(sorted(self.faults, key=lambda fault: (fault.origin != self.origin, fault.line or 0)))

    def as_written(self, location: Location) -> Location:
        """Where a value of the document stands in the file, under the table's name that was used there."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.other_names:
                return self.other_names[location[:length]] + location[length:]
        return location

    def place(self, written: Location) -> Place:
        """The place of a value, or of the nearest table around it that has one."""
        around = (written[:length] for length in range(len(written), 0, -1))
        return next((self.places[outer] for outer in around if outer in self.places), Place(self.origin))

    def put(self, location: Location, value: object, place: Place) -> bool:
        """Sets one value over what was there; False if a list on the way ends before the item that is named."""
        parent: Any = None
        node: Any = self.document
        for step, next_step in zip(location, (*location[1:], ""), strict=True):
            if not _can_hold(node, step):
                return True  # something else stands there: validation will say what, and where
            if isinstance(step, int):
                if step > len(node):
                    return False
                node.extend([{}] if step == len(node) else [])
            else:
                node.setdefault(step, [] if isinstance(next_step, int) else {})
            parent, node = node, node[step]
        parent[location[-1]] = value
        for within in [within for within in self.places if within[: len(location)] == location]:
            del self.places[within]
        self.places[location] = place
        return True

    def merge_other_names(self) -> None:
        """Appends the items of a table's other name to the table, and remembers how they were written."""
        for other, table in OTHER_NAMES.items():
            parent = self.document.get(other[0])
            if isinstance(parent, dict) and other[1] in parent:
                items, others = self._items_at(table), self._items_at(other)
                del parent[other[1]]
                parent[table[1]] = [*items, *others]
                for index in range(len(others)):
                    self.other_names[(*table, len(items) + index)] = (*other, index)

    def _items_at(self, table: tuple[str, str]) -> list[Any]:
        items = self.document[table[0]].get(table[1], [])
        if isinstance(items, list | tuple):
            return list(items)
        self.fault(table, f"wants a list in [ ], but {shown(items)} came", "invalid")
        return []


def _can_hold(node: object, step: str | int) -> bool:
    return isinstance(node, list if isinstance(step, int) else dict)


def read_toml(file: Path, source: Source) -> None:
    """Reads the file into an empty source; a file that cannot be read, or is no TOML, becomes one fault."""
    text = _read_text(file, source)
    if text is None:
        return
    try:
        source.document = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        source.faults.append(Fault(source.origin, error.lineno, "", _syntax_message(error.msg), "syntax"))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, hundreds of nested lists
        source.faults.append(Fault(source.origin, None, "", f"cannot be read as TOML: {error}", "syntax"))
    else:
        source.places = {location: Place(source.origin, line) for location, line in key_lines(text).items()}


def _read_text(file: Path, source: Source) -> str | None:
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        message = "there is no such file"
    except IsADirectoryError:
        message = "is a folder: name the config file in it"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    else:
        if len(content) > _LARGEST_FILE:
            message = "is larger than 4 MiB, so hardly a config file"
        else:
            try:
                return content.decode("utf-8-sig").replace("\r\n", "\n")
            except UnicodeDecodeError as error:
                line = content.count(b"\n", 0, error.start) + 1
                message = f"is not UTF-8 text (a byte on line {line}): save it as UTF-8"
    source.faults.append(Fault(source.origin, None, "", message, "unreadable"))
    return None


def _syntax_message(message: str) -> str:
    if "Cannot overwrite a value" in message or "Cannot declare" in message:
        return "this key or table is already set further up: keep one of the two"
    if "Invalid value" in message:
        return 'not TOML: a value is missing or wrong here (text wants quotes: host = "127.0.0.1")'
    return f"not TOML: {message[:1].lower()}{message[1:]}"
