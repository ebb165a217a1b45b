"""Merge file, environment and flags into one document, and record the place of each value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from app.config.issues import ConfigIssue, IssueKind, Location, format_location, format_value
from app.config.key_lines import key_lines

TABLE_ALIASES: Mapping[tuple[str, str], tuple[str, str]] = {("models", "candle_models"): ("models", "torch_models")}
"""Second name of a table → the table. The entries of both are merged."""

_MAX_FILE_BYTES = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written."""

    origin: str
    line: int | None = None


@dataclass(slots=True)
class Source:
    """A document of nested tables, the place of each value in it, and the issues found so far."""

    origin: str
    document: dict[str, Any] = field(default_factory=dict)
    places: dict[Location, Place] = field(default_factory=dict)
    issues: list[ConfigIssue] = field(default_factory=list)
    written_locations: dict[Location, Location] = field(default_factory=dict)
    """Location in the document → location as written, for merged tables and renamed keys."""

    def add_issue(self, location: Location, message: str, kind: IssueKind) -> None:
        """Add an issue about the value at `location` of the document."""
        location = self.as_written(location)
        place = self.place(location)
        self.issues.append(ConfigIssue(place.origin, place.line, format_location(location), message, kind))

    def sorted_issues(self) -> tuple[ConfigIssue, ...]:
        """Return the issues of the file by line, then those of environment and flags."""
        return tuple(sorted(self.issues, key=lambda issue: (issue.origin != self.origin, issue.line or 0)))

    def as_written(self, location: Location) -> Location:
        """Return the location of a value as its file or variable names it."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.written_locations:
                return self.written_locations[location[:length]] + location[length:]
        return location

    def place(self, written: Location) -> Place:
        """Return the place of a value, else of the innermost table around it that has one."""
        around = (written[:length] for length in range(len(written), 0, -1))
        return next((self.places[outer] for outer in around if outer in self.places), Place(self.origin))

    def set_value(self, location: Location, value: object, place: Place) -> bool:
        """Set one value, replacing an earlier one. Return False if a list in `location` has too few items."""
        parent: Any = None
        node: Any = self.document
        for step, next_step in zip(location, (*location[1:], ""), strict=True):
            if not _can_hold(node, step):
                return True  # a value of another type: validation reports it, with its place
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

    def model_entries(self) -> Iterator[tuple[Location, Any]]:
        """Yield the location and content of each model's entry, of any type, in both tables."""
        models = self.document.get("models")
        for table in ("onnx_models", "torch_models"):
            entries = models.get(table) if isinstance(models, dict) else None
            for index, entry in enumerate(entries if isinstance(entries, list | tuple) else []):
                yield ("models", table, index), entry

    def merge_table_aliases(self) -> None:
        """Append the entries of a table's second name to the table, and record where they were written."""
        for other, table in TABLE_ALIASES.items():
            parent = self.document.get(other[0])
            if isinstance(parent, dict) and other[1] in parent:
                items, others = self._items_at(table), self._items_at(other)
                del parent[other[1]]
                parent[table[1]] = [*items, *others]
                for index in range(len(others)):
                    self.written_locations[(*table, len(items) + index)] = (*other, index)

    def rename_deprecated_keys(self, table: Location, content: object, new_names: Mapping[str, str]) -> None:
        """Move the value of each deprecated key to its new name, and add a warning.

        A value of the environment replaces one of the file under either name. Both names in one place are an error.
        """
        if not isinstance(content, dict):
            return
        for old, new in new_names.items():
            if old not in content:
                continue
            at_old, at_new = (*table, old), (*table, new)
            self.add_issue(at_old, f"deprecated key; rename it to {new}", "deprecated")
            value = content.pop(old)
            if new in content and self._is_from_file(at_old) == self._is_from_file(at_new):
                message = f"expected {new} or its deprecated name, got both; remove {old}"
                self.add_issue(at_old, message, "duplicate")
            elif new not in content or self._is_from_file(at_new):
                content[new] = value
                self.written_locations[at_new] = self.as_written(at_old)

    def _is_from_file(self, location: Location) -> bool:
        return self.place(self.as_written(location)).origin == self.origin

    def _items_at(self, table: tuple[str, str]) -> list[Any]:
        items = self.document[table[0]].get(table[1], [])
        if isinstance(items, list | tuple):
            return list(items)
        self.add_issue(table, f"expected a list, got {format_value(items)}", "invalid")
        return []


def _can_hold(node: object, step: str | int) -> bool:
    return isinstance(node, list if isinstance(step, int) else dict)


def read_toml(file: Path, source: Source) -> None:
    """Read the file into an empty source. A file that cannot be read or parsed adds one issue."""
    text = _read_text(file, source)
    if text is None:
        return
    try:
        source.document = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        source.issues.append(ConfigIssue(source.origin, error.lineno, "", _syntax_message(error.msg), "syntax"))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, hundreds of nested lists
        source.issues.append(ConfigIssue(source.origin, None, "", f"invalid TOML: {error}", "syntax"))
    else:
        source.places = {location: Place(source.origin, line) for location, line in key_lines(text).items()}


def _read_text(file: Path, source: Source) -> str | None:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        message = "no such file; correct the path"
    except IsADirectoryError:
        message = "expected a file, got a folder; name the config file in it"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    else:
        if len(content) > _MAX_FILE_BYTES:
            message = "expected a config file, got more than 4 MiB"
        else:
            try:
                return content.decode("utf-8-sig").replace("\r\n", "\n")
            except UnicodeDecodeError as error:
                line = content.count(b"\n", 0, error.start) + 1
                message = f"expected UTF-8 text, got another byte on line {line}; save the file as UTF-8"
    source.issues.append(ConfigIssue(source.origin, None, "", message, "unreadable"))
    return None


def _syntax_message(message: str) -> str:
    if "Cannot overwrite a value" in message or "Cannot declare" in message:
        return "expected each key and table once, got this one again; keep one of the two"
    if "Invalid value" in message:
        return 'invalid TOML: expected a value; write text in quotes, like host = "127.0.0.1"'
    return f"invalid TOML: {message[:1].lower()}{message[1:]}"


def names_of(entry: object) -> Iterator[tuple[Location, str]]:
    """Yield the name and the aliases of the entry of a model, with their places in it."""
    fields = entry if isinstance(entry, dict) else {key: getattr(entry, key, None) for key in ("name", "aliases")}
    aliases = fields.get("aliases")
    places: list[tuple[Location, object]] = [(("name",), fields.get("name"))]
    places += [
        (("aliases", at), alias) for at, alias in enumerate(aliases if isinstance(aliases, list | tuple) else [])
    ]
    for place, name in places:
        if isinstance(name, str):
            yield place, name
