"""Find settings by name, and set them from environment variables."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from app.config.issues import ConfigIssue, Location, format_location, format_value, nearest
from app.config.source import TABLE_ALIASES, Place, Source

PREFIX = "ROUNDHOUSE_"
CONFIG_VARIABLE = "ROUNDHOUSE_CONFIG"
"""Path of the config file. The command line reads it; it is not a setting."""
API_KEY_VARIABLE = "ROUNDHOUSE_API_KEY"
"""One key of a server, and the key of the command line's requests. Not a setting: settings are shown in messages."""

# Variables that Kubernetes sets for a service named roundhouse, roundhouse-gpu and so on.
_SERVICE_LINK = re.compile(r"ROUNDHOUSE_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)")


def read_environment(environ: Mapping[str, str], settings: type[BaseModel], source: Source) -> None:
    """Set the value of every ROUNDHOUSE_A__B variable. A variable without a setting adds an issue."""
    ours = [(name.upper(), name, text) for name, text in environ.items() if name.upper().startswith(PREFIX)]
    ours.sort(key=_whole_tables_first)
    for upper, same in groupby(ours, key=lambda variable: variable[0]):
        (_, name, text), *others = same
        is_address = upper.endswith("_PORT") and text.startswith(("tcp://", "udp://", "sctp://"))
        if upper == CONFIG_VARIABLE or name == API_KEY_VARIABLE or is_address or _SERVICE_LINK.fullmatch(upper):
            continue
        if others:
            message = f"expected one variable, got {name} and {others[0][1]}; keep one"
            source.issues.append(ConfigIssue(name, None, "", message, "duplicate"))
        location, annotation = find_setting(settings, upper.removeprefix(PREFIX).lower().split("__"))
        if location:
            set_from_text(source, location, text, annotation, Place(name))
        else:
            message = _unknown_variable(upper, settings)
            source.issues.append(ConfigIssue(name, None, "", message, "unknown_variable"))


def _whole_tables_first(variable: tuple[str, str, str]) -> tuple[int, str]:
    """Sort tables before their keys, so that a key's own variable wins, and list items by number."""
    return variable[0].count("__"), re.sub("[0-9]+", lambda number: number[0].zfill(9), variable[0])


def set_from_text(source: Source, location: Location, text: str, annotation: Any, place: Place) -> None:
    """Convert `text` to the setting's type (lists and tables: JSON) and set it at `location`."""
    kinds = set(_leaf_types(annotation))
    try:
        value = _from_text(text, kinds)
    except (ValueError, RecursionError):
        like = "{...}" if any(map(_is_model, kinds)) else "[...]"
        message = f"expected JSON like {like}, got {format_value(text)}"
        source.issues.append(ConfigIssue(place.origin, None, format_location(location), message, "invalid"))
        return
    into_table = isinstance(value, dict) and any(map(_is_model, kinds))
    for inner, item in [((*location, key), item) for key, item in value.items()] if into_table else [(location, value)]:
        if not source.set_value(inner, item, place):
            message = "expected the index of an item or the next index, got a larger one; count items from 0"
            source.issues.append(ConfigIssue(place.origin, None, format_location(location), message, "invalid"))
            return


def _from_text(text: str, kinds: set[Any]) -> Any:
    """Convert `text` for a setting of these types. Text that none of them accepts is returned as it is."""
    is_plain = str in kinds and not text.lstrip().startswith("[")
    if not is_plain and any(get_origin(kind) is tuple or _is_model(kind) for kind in kinds):
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # raises for a lone surrogate: "\ud800"
        return value
    for kind in kinds & {bool, int, float}:  # a field has one of them at most
        try:
            return TypeAdapter[object](kind).validate_python(text)
        except ValidationError:
            return text
    return text


def find_setting(settings: type[BaseModel], names: list[str]) -> tuple[Location, Any]:
    """Return the location and type of the setting with this path of names; an empty location without one.

    A deprecated key is found under its old name and has the type of the new one.
    """
    location: Location = ()
    annotation: Any = settings
    for name in names:
        item = _item_type(annotation)
        if item is not None and re.fullmatch("[0-9]{1,9}", name, re.ASCII):
            location, annotation = (*location, int(name)), item
            continue
        known = TABLE_ALIASES.get((*location, name), (name,))[-1]  # type: ignore[arg-type]
        if _is_model(annotation):
            known = getattr(annotation, "deprecated_keys", {}).get(known, known)
        if not _is_model(annotation) or known not in annotation.model_fields:
            return (), None
        location, annotation = (*location, name), _present(annotation.model_fields[known].annotation)
    return location, annotation


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class of a field of this type, or of the items of its list; None for other types."""
    inner = _item_type(annotation) or _present(annotation)
    return inner if _is_model(inner) else None


def setting_names(model: type[BaseModel], outer: Location = ()) -> Iterator[Location]:
    """Yield the location of every table and key; index 0 stands for every item of a list."""
    for name, info in model.model_fields.items():
        for location in [(*outer, name), *(other for other, table in TABLE_ALIASES.items() if table == (*outer, name))]:
            yield location
            inner = nested_model(info.annotation)
            if inner is not None:
                yield from setting_names(inner, (*location, 0) if _item_type(info.annotation) else location)


def _unknown_variable(upper: str, settings: type[BaseModel]) -> str:
    known = {"__".join(map(str, location)).upper(): location for location in setting_names(settings)}
    name = re.sub("__[0-9]+(?=__|$)", "__0", upper.removeprefix(PREFIX))
    by_last_name = {str(location[-1]).upper(): variable for variable, location in reversed(known.items())}
    near = by_last_name.get(name) or nearest(name, known)
    hint = f"did you mean {PREFIX}{near}?" if near else "names look like ROUNDHOUSE_SERVER__PORT"
    return f"unknown variable; {hint}"


def _item_type(annotation: Any) -> Any:
    """Return the type of the tables in a list of tables; None for any other type."""
    item = get_args(annotation)[0] if get_origin(annotation) is tuple else None
    return item if _is_model(item) else None


def _present(annotation: Any) -> Any:
    """Return the settings class of a table that may be absent; any other type is returned as it is."""
    tables = [kind for kind in get_args(annotation) if _is_model(kind)]
    return tables[0] if len(tables) == 1 and type(None) in get_args(annotation) else annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _leaf_types(annotation: Any) -> Iterator[Any]:
    """Yield the plain types in a field's type: int and NoneType of `Annotated[int, ...] | None`. A list is one type."""
    origin = get_origin(annotation)
    if origin is None or origin is tuple or origin is Literal:
        yield annotation
    else:
        arguments = get_args(annotation)
        for inner in arguments[:1] if hasattr(annotation, "__metadata__") else arguments:
            yield from _leaf_types(inner)
