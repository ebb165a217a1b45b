"""Which settings there are, by name, and the environment variables that set them."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from app.config.faults import Fault, Location, dotted, nearest, shown
from app.config.source import OTHER_NAMES, Place, Source

PREFIX = "ROUNDHOUSE_"
CONFIG_VARIABLE = "ROUNDHOUSE_CONFIG"
"""The path of the config file: the command line reads it, it sets nothing itself."""

# What Kubernetes puts into the environment for a service called roundhouse, roundhouse-gpu and so on.
_SERVICE_LINK = re.compile(r"ROUNDHOUSE_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)")


def read_environment(environ: Mapping[str, str], settings: type[BaseModel], source: Source) -> None:
    """Puts every ROUNDHOUSE_A__B variable over the document; one that names no setting becomes a fault."""
    ours = [(name.upper(), name, text) for name, text in environ.items() if name.upper().startswith(PREFIX)]
    ours.sort(key=_whole_tables_first)
    for upper, same in groupby(ours, key=lambda variable: variable[0]):
        (_, name, text), *others = same
        is_address = upper.endswith("_PORT") and text.startswith(("tcp://", "udp://", "sctp://"))
        if upper == CONFIG_VARIABLE or is_address or _SERVICE_LINK.fullmatch(upper):
            continue
        if others:
            message = f"is set twice, as {name} and as {others[0][1]}: keep one"
            source.faults.append(Fault(name, None, "", message, "duplicate"))
        location, annotation = find_setting(settings, upper.removeprefix(PREFIX).lower().split("__"))
        if location:
            put_text(source, location, text, annotation, Place(name))
        else:
            source.faults.append(Fault(name, None, "", _unknown_variable(upper, settings), "unknown_variable"))


def _whole_tables_first(variable: tuple[str, str, str]) -> tuple[int, str]:
    """A key's own variable wins over one for its whole table; items of a list come in the order of their numbers."""
    return variable[0].count("__"), re.sub("[0-9]+", lambda number: number[0].zfill(9), variable[0])


def put_text(source: Source, location: Location, text: str, annotation: Any, place: Place) -> None:
    """Reads `text` as the setting's type wants it (lists and tables as JSON) and puts it at `location`."""
    kinds = set(_leaf_types(annotation))
    try:
        value = _from_text(text, kinds)
    except (ValueError, RecursionError):
        like = "{...}" if any(map(_is_model, kinds)) else "[...]"
        message = f"wants JSON, like {like}, but {shown(text)} came"
        source.faults.append(Fault(place.origin, None, dotted(location), message, "invalid"))
        return
    into_table = isinstance(value, dict) and any(map(_is_model, kinds))
    for inner, item in [((*location, key), item) for key, item in value.items()] if into_table else [(location, value)]:
        if not source.put(inner, item, place):
            message = "there is no item of this number, and it is not the next one either"
            source.faults.append(Fault(place.origin, None, dotted(location), message, "invalid"))
            return


def _from_text(text: str, kinds: set[Any]) -> Any:
    """The value that `text` means for a setting of these types; where it can mean none it stays text."""
    if any(get_origin(kind) is tuple or _is_model(kind) for kind in kinds):
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # refuses half characters: "\ud800"
        return value
    for kind in kinds & {bool, int, float}:  # a field has one of them at most
        try:
            return TypeAdapter[object](kind).validate_python(text)
        except ValidationError:
            return text
    return text


def find_setting(settings: type[BaseModel], names: list[str]) -> tuple[Location, Any]:
    """The location and type of the setting with these names on the way to it; an empty location if there is none."""
    location: Location = ()
    annotation: Any = settings
    for name in names:
        item = _item_type(annotation)
        if item is not None and re.fullmatch("[0-9]{1,9}", name, re.ASCII):
            location, annotation = (*location, int(name)), item
            continue
        known = next((table[-1] for other, table in OTHER_NAMES.items() if other == (*location, name)), name)
        if not _is_model(annotation) or known not in annotation.model_fields:
            return (), None
        location, annotation = (*location, name), annotation.model_fields[known].annotation
    return location, annotation


def model_within(annotation: Any) -> type[BaseModel] | None:
    """The settings model that a field of this type holds, itself or as the items of a list; None if it holds none."""
    inner = _item_type(annotation) or annotation
    return inner if _is_model(inner) else None


def setting_names(model: type[BaseModel], outer: Location = ()) -> Iterator[Location]:
    """Every table and key there is; the items of a list stand for all of them as number 0."""
    for name, info in model.model_fields.items():
        for location in [(*outer, name), *(other for other, table in OTHER_NAMES.items() if table == (*outer, name))]:
            yield location
            inner = model_within(info.annotation)
            if inner is not None:
                yield from setting_names(inner, (*location, 0) if _item_type(info.annotation) else location)


def _unknown_variable(upper: str, settings: type[BaseModel]) -> str:
    known = {"__".join(map(str, location)).upper(): location for location in setting_names(settings)}
    name = re.sub("__[0-9]+(?=__|$)", "__0", upper.removeprefix(PREFIX))
    by_last_name = {str(location[-1]).upper(): variable for variable, location in reversed(known.items())}
    near = by_last_name.get(name) or nearest(name, known)
    hint = f"did you mean {PREFIX}{near}?" if near else "a variable is called like ROUNDHOUSE_SERVER__PORT"
    return f"sets nothing that is known; {hint}"


def _item_type(annotation: Any) -> Any:
    """The type of the tables in a list of tables; None for any other type."""
    item = get_args(annotation)[0] if get_origin(annotation) is tuple else None
    return item if _is_model(item) else None


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _leaf_types(annotation: Any) -> Iterator[Any]:
    """The plain types in a field's type: `Annotated[int, ...] | None` holds int and NoneType; a list counts as one."""
    origin = get_origin(annotation)
    if origin is None or origin is tuple or origin is Literal:
        yield annotation
    else:
        arguments = get_args(annotation)
        for inner in arguments[:1] if hasattr(annotation, "__metadata__") else arguments:
            yield from _leaf_types(inner)
