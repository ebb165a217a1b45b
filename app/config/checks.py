"""Checks a document against the settings models, and for what they cannot see: a name twice, a path to nothing."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from app.config.environment import find_setting, model_within, setting_names
from app.config.faults import Location, describe_fault, dotted, nearest, shown
from app.config.source import Source

_Model = TypeVar("_Model", bound=BaseModel)


def validated(model: type[_Model], source: Source, all_settings: type[BaseModel]) -> _Model | None:
    """The document as a frozen model; or None, and a fault in the source for everything that the model refuses.

    `all_settings` is where an unknown key may belong instead.
    """
    try:
        return model.model_validate(source.document)
    except ValidationError as refusal:
        for error in refusal.errors(include_url=False):
            location = error["loc"]
            if error["type"] == "extra_forbidden":
                source.fault(location, _unknown_key(location, model, all_settings), "unknown_key")
            elif error["type"] == "missing":
                source.fault(location, "is missing: every model needs one", "missing")
            else:
                source.fault(location, describe_fault(error), "invalid")
        return None


def check_names(source: Source) -> None:
    """Adds a fault for each model that has the name of one before it, in whichever table."""
    first: dict[str, Location] = {}
    in_file_order = sorted(_entries(source), key=lambda entry: source.place(source.as_written(entry[0])).line or 10**9)
    for location, entry in in_file_order:
        name = entry.get("name") if isinstance(entry, dict) else getattr(entry, "name", None)
        if not isinstance(name, str):
            continue
        if name in first:
            other = source.as_written(first[name])
            line = source.place((*other, "name")).line
            where = dotted(other) + (f" (line {line})" if line else "")
            source.fault(
                (*location, "name"), f"{shown(name)} is already the name of {where}: names are unique", "duplicate"
            )
        first.setdefault(name, location)


def check_paths(source: Source, resolve: Callable[[Path], Path]) -> None:
    """Adds a fault for each path of the document at which there is nothing, or not what there should be."""
    models = source.document.get("models")
    models = models if isinstance(models, dict) else {}
    roots = models.get("roots")
    folders = [
        (("models", "roots", index), root) for index, root in enumerate(roots if isinstance(roots, list) else [])
    ]
    paths = [
        ((*location, "path"), entry.get("path")) for location, entry in _entries(source) if isinstance(entry, dict)
    ]
    for location, text in (*folders, *paths, (("models", "cache_dir"), models.get("cache_dir"))):
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            continue  # left out, or a fault already
        path = resolve(Path(text))
        what = _what_is_at(path)
        if what == "a file" and location[1] != "onnx_models":
            source.fault(location, f"wants a folder, but {path} is a file", "invalid")
        elif what not in ("a file", "a folder") and location[1] != "cache_dir":  # a cache_dir is made when first used
            source.fault(location, f"nothing to read at {path} ({what})", "not_found")


def _what_is_at(path: Path) -> str:
    try:
        return "a folder" if stat.S_ISDIR(path.stat().st_mode) else "a file"
    except OSError as error:
        return str(error.strerror).lower()
    except ValueError:  # half characters, from a variable
        return "no such path"


def _entries(source: Source) -> Iterator[tuple[Location, Any]]:
    models = source.document.get("models")
    for table in ("onnx_models", "torch_models"):
        entries = models.get(table) if isinstance(models, dict) else None
        for index, entry in enumerate(entries if isinstance(entries, list | tuple) else []):
            yield ("models", table, index), entry


def _unknown_key(location: Location, model: type[BaseModel], all_settings: type[BaseModel]) -> str:
    key = str(location[-1])
    elsewhere = {
        _header(name[:-1]) for name in setting_names(all_settings) if name[-1] == key and "candle_models" not in name
    }
    if elsewhere:
        return f"unknown key here; it belongs {' or '.join(sorted(elsewhere))}"
    _, annotation = find_setting(model, [str(step) for step in location[:-1]])
    table = model_within(annotation)
    known = list(table.model_fields) if table else []
    near = nearest(key, known)
    return f'unknown key; did you mean "{near}"?' if near else f"unknown key; known here are {', '.join(known)}"


def _header(table: Location) -> str:
    """Says where the keys of a table are written."""
    if not table:
        return "at the top of the file"
    if not isinstance(table[-1], int):
        return f"in [{dotted(table)}]"
    return f"in [[{dotted(table[:-1])}]]"
