"""Check a document against the settings classes, and for unique model names and existing paths."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from app.config.environment import find_setting, nested_model, setting_names
from app.config.issues import Location, describe_error, format_location, format_value, nearest
from app.config.source import Source, names_of
from app.config.tls_files import TlsFileError, TlsFiles, read_material
from frameworks.core.addresses import is_address, parse_address
from frameworks.core.errors import InvalidModel
from frameworks.core.extras import install_command
from frameworks.core.files import find_graph
from frameworks.core.settings.entry_values import names_several_devices

_Model = TypeVar("_Model", bound=BaseModel)

_PROCESS_KEYS = ("max_batch_seconds", "max_process_memory", "niceness", "cpus")
"""Keys that apply to the process of a model."""


def validate(model: type[_Model], source: Source, all_settings: type[BaseModel]) -> _Model | None:
    """Return the document as a frozen model. On errors add an issue for each and return None.

    `all_settings`: where the table of an unknown key is searched.
    """
    try:
        return model.model_validate(source.document)
    except ValidationError as refusal:
        for error in refusal.errors(include_url=False):
            location = error["loc"]
            if error["type"] == "extra_forbidden":
                source.add_issue(location, _unknown_key(location, model, all_settings), "unknown_key")
            elif error["type"] == "missing":
                source.add_issue(location, "expected a value, got none; every model needs this key", "missing")
            else:
                source.add_issue(location, describe_error(error), "invalid")
        return None


def check_names(source: Source) -> None:
    """Add an issue for each name or alias of a model that an earlier model of either table has."""
    first: dict[str, tuple[Location, Location]] = {}
    in_file_order = sorted(
        source.model_entries(), key=lambda entry: source.place(source.as_written(entry[0])).line or 10**9
    )
    for location, entry in in_file_order:
        for place, name in names_of(entry):
            if name in first and first[name][0] != location:
                whose, key = first[name]
                other = source.as_written(whose)
                line = source.place((*other, *key)).line
                where = format_location(other) + (f" (line {line})" if line else "")
                kind = "the name" if key == ("name",) else "an alias"
                message = f"expected a unique name, got {format_value(name)}, {kind} of {where}; choose another"
                source.add_issue((*location, *place), message, "duplicate")
            first.setdefault(name, (location, place))


def check_isolation(source: Source, location: Location, entry: object, default: object) -> None:
    """Add an issue for each key of a model's entry that only a model with a process of its own may have.

    `default`: the `isolation` of a model that has none of its own.
    """
    if not isinstance(entry, dict) or (entry.get("isolation") or default or "none") != "none":
        return
    if names_several_devices(entry.get("device")) or entry.get("tensor_parallel", 1) != 1:
        return
    for key in _PROCESS_KEYS:
        value = entry.get(key)
        if value is not None:
            message = f'expected no value without isolation = "process", got {format_value(value)}; add it beside {key}'
            source.add_issue((*location, key), message, "invalid")


def check_paths(source: Source, resolve: Callable[[Path], Path]) -> None:
    """Add an issue for each path of the document without a file or folder, or with the wrong one of them."""
    models = source.document.get("models")
    models = models if isinstance(models, dict) else {}
    roots = models.get("roots")
    folders = [
        (("models", "roots", index), root) for index, root in enumerate(roots if isinstance(roots, list) else [])
    ]
    paths: list[tuple[Location, object]] = [
        ((*location, "path"), entry.get("path"))
        for location, entry in source.model_entries()
        if isinstance(entry, dict)
    ]
    paths += _adapter_paths(source)
    paths += _draft_paths(source)
    for location, text in (*folders, *paths, (("models", "cache_dir"), models.get("cache_dir"))):
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            continue  # left out, or reported already
        if location[-1] == "path" and is_address(text):
            continue
        path = resolve(Path(text))
        kind = _path_kind(path)
        is_model = location[-1] in ("path", "draft_model") and "adapters" not in location
        if kind == "file" and location[1] != "onnx_models" and not (is_model and path.suffix.lower() == ".gguf"):
            wanted = "a folder or a .gguf file" if is_model else "a folder"
            source.add_issue(location, f"expected {wanted}, got the file {path}", "invalid")
        elif kind not in ("file", "folder") and location[1] != "cache_dir":  # a cache_dir is made when first used
            message = f"expected a file or folder, got {path} ({kind}); correct the path"
            source.add_issue(location, message, "not_found")
        elif is_model and location[1] != "onnx_models" and (problem := _problem_of_gguf(path)):
            source.add_issue(location, problem, "invalid")


def _problem_of_gguf(path: Path) -> str | None:
    """Return what is wrong with the header of a model's GGUF file; None if nothing is, or if it has none."""
    if path.suffix.lower() != ".gguf" and not any(path.glob("*.gguf")):
        return None
    from frameworks.text.gguf.folder import find_gguf, find_projector, read_gguf

    try:
        file = find_gguf(path)
        if file is not None:
            read_gguf(file, find_projector(path))
    except InvalidModel as error:
        return error.message
    return None


def _adapter_paths(source: Source) -> list[tuple[Location, object]]:
    found: list[tuple[Location, object]] = []
    for location, entry in source.model_entries():
        adapters = entry.get("adapters") if isinstance(entry, dict) else None
        for index, adapter in enumerate(adapters if isinstance(adapters, list) else []):
            if isinstance(adapter, dict):
                found.append(((*location, "adapters", index, "path"), adapter.get("path")))
    return found


def _draft_paths(source: Source) -> list[tuple[Location, object]]:
    """Return the draft models that are paths, not names of other models."""
    entries = [(location, entry) for location, entry in source.model_entries() if isinstance(entry, dict)]
    names = [name for location, entry in entries if location[1] != "onnx_models" for _, name in names_of(entry)]
    drafts = [((*location, "draft_model"), entry.get("draft_model")) for location, entry in entries]
    return [(location, draft) for location, draft in drafts if draft not in names]


def check_sources(source: Source) -> None:
    """Add an issue for each model with an address whose source needs a package that is not installed."""
    for location, entry in source.model_entries():
        text = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not is_address(text):
            continue
        from frameworks.sources.remotes import missing_package

        try:
            extra = missing_package(parse_address(text))
        except ValueError:
            continue  # reported already
        if extra is not None:
            message = f"expected the extra {extra}, got none; {install_command(extra)}"
            source.add_issue((*location, "path"), message, "invalid")


def check_input_values(source: Source, resolve: Callable[[Path], Path]) -> None:
    """Add an issue for each model whose file of input values is not beside its graph."""
    for location, entry in source.model_entries():
        values = entry.get("input_values") if isinstance(entry, dict) else None
        model = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(values, str) or not isinstance(model, str) or not model.strip() or "\0" in model + values:
            continue
        path = resolve(Path(model))
        graph = path if _path_kind(path) == "file" else find_graph(path)
        # Versions have folders of their own, and models without a graph are reported already.
        if graph is not None and _path_kind(graph.parent / values) != "file":
            message = f"expected a file in the folder of the graph, got {graph.parent / values}; correct the name"
            source.add_issue((*location, "input_values"), message, "not_found")


def check_tls(source: Source, files: TlsFiles | None) -> None:
    """Add an issue for the first of the TLS files that cannot be used."""
    try:
        if files is not None:
            read_material(files)
    except TlsFileError as error:
        source.add_issue(("server", error.key), error.message, "invalid")


def _path_kind(path: Path) -> str:
    """Return "file", "folder", or the error of the operating system."""
    try:
        return "folder" if stat.S_ISDIR(path.stat().st_mode) else "file"
    except OSError as error:
        return str(error.strerror).lower()
    except ValueError:  # lone surrogates, from a variable
        return "invalid path"


def _unknown_key(location: Location, model: type[BaseModel], all_settings: type[BaseModel]) -> str:
    key = str(location[-1])
    elsewhere = {
        _header(name[:-1]) for name in setting_names(all_settings) if name[-1] == key and "candle_models" not in name
    }
    if elsewhere:
        return f"unknown key here; move it to {' or '.join(sorted(elsewhere))}"
    _, annotation = find_setting(model, [str(step) for step in location[:-1]])
    table = nested_model(annotation)
    known = list(table.model_fields) if table else []
    near = nearest(key, known)
    return f'unknown key; did you mean "{near}"?' if near else f"unknown key; known keys are {', '.join(known)}"


def _header(table: Location) -> str:
    """Name the place of a table's keys in the file."""
    if not table:
        return "the top of the file"
    if not isinstance(table[-1], int):
        return f"[{format_location(table)}]"
    return f"[[{format_location(table[:-1])}]]"
