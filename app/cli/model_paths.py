"""Add the models of `roundhouse serve PATH …` to the settings; name and framework come from the path or the files."""

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from app.config import ConfigError, ConfigIssue, Settings
from frameworks.core.addresses import SourceAddress, is_address, parse_address
from frameworks.core.files import is_gguf
from frameworks.core.names import is_model_name, last_part
from frameworks.core.settings.entries import ModelEntry, OnnxModelEntry, TorchModelEntry
from frameworks.models.versions.version_folders import find_versions, framework_of
from frameworks.sources.contract import Framework

_NOT_A_MODEL = (
    "expected an .onnx or .gguf file, or a folder with model.onnx, *.safetensors or one .gguf file, or a folder of "
    "such folders, or an address like hf://org/name, or the org/name of a hub"
)
_FILES_OF_A_MODEL = ("config.json", "modules.json", "tokenizer.json")
"""A folder with one of them is a model whose weights are missing, and its subfolders are parts of it. Repositories of
GGUF files may have one too.
"""
_MAX_MODELS = 256
_MAX_CHILDREN = 10_000
_MAX_NOTED = 10
_MISSING = (
    "expected a model, got a path that does not exist; correct the path, or name an address like hf://org/name, or the "
    "org/name of a hub"
)
_GGUF = ".gguf"
_HUB_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._-]+)?", re.ASCII)


def with_models(
    settings: Settings,
    paths: list[str],
    fetch: Callable[[SourceAddress], Framework] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Settings:
    """Return the settings with the models of each path or address. Raises ConfigError for those without a model.

    A folder that is not a model adds each model in it. A repository of a hub is served as `org/name`, with the alias
    `name` if no other model has it.

    `fetch`: fetches the model of an address and returns its framework; its errors are raised. It is called when all
    other models are valid. None: only local paths are accepted. `note`: called with a line for each folder of models
    whose subfolders are not all models.
    """
    if not paths:
        return settings
    models = settings.models
    found: list[ModelEntry | SourceAddress] = []
    taken = {name for entry in (*models.onnx_models, *models.torch_models) for name in entry.names}
    taken.update(name for _, entry in settings.composites() for name in entry.names)
    issues = []
    for path in paths:
        try:
            address = address_of(path) if fetch is not None else None
            named = [address] if address is not None else _read_entries(path, note)
        except ValueError as error:
            issues.append(ConfigIssue("command line", None, path, str(error), "invalid"))
            continue
        except OSError as error:
            message = f"expected a model, got a path that cannot be read ({error.strerror}); correct its permissions"
            issues.append(ConfigIssue("command line", None, path, message, "unreadable"))
            continue
        if not named:
            issues.append(_no_model(path))
        for each in named:
            name = _name_of(each) if isinstance(each, SourceAddress) else each.name
            if name in taken:
                message = f'expected a unique name, got "{name}" again; name the models in a config file'
                issues.append(ConfigIssue("command line", None, path, message, "duplicate"))
            else:
                taken.add(name)
                found.append(each)
    if issues:
        raise ConfigError(issues)
    new = [
        _fetched_entry(each, fetch(each), taken) if fetch is not None and isinstance(each, SourceAddress) else each
        for each in found
    ]
    onnx = [*models.onnx_models, *(entry for entry in new if isinstance(entry, OnnxModelEntry))]
    torch = [*models.torch_models, *(entry for entry in new if isinstance(entry, TorchModelEntry))]
    return settings.model_copy(
        update={"models": models.model_copy(update={"onnx_models": tuple(onnx), "torch_models": tuple(torch)})}
    )


def _no_model(path: str) -> ConfigIssue:
    if path.endswith(".toml"):
        message = f"expected a model, got a config file; say --config {path}"
        return ConfigIssue("command line", None, path, message, "invalid")
    return ConfigIssue("command line", None, path, _NOT_A_MODEL if Path(path).exists() else _MISSING, "not_found")


def address_of(path: str) -> SourceAddress | None:
    """Return the address that a path of the command line names; None for a local path. Raises ValueError.

    `org/name` is a repository of a hub where no file or folder has this path.
    """
    if is_address(path):
        return parse_address(path)
    if _HUB_REPOSITORY.fullmatch(path) and not path.endswith((".onnx", _GGUF)) and not Path(path).exists():
        return parse_address(f"hf://{path}")
    return None


def _fetched_entry(address: SourceAddress, framework: Framework, taken: set[str]) -> ModelEntry:
    """Return the entry of an address, and add its alias to the names that are `taken`."""
    entry_type = OnnxModelEntry if framework == "onnx" else TorchModelEntry
    name = _name_of(address)
    aliases = tuple({last_part(name)} - taken)
    taken.update(aliases)
    return entry_type(name=name, aliases=aliases, path=address)


def _name_of(address: SourceAddress) -> str:
    """Return the name of a model with an address: that of a whole repository of a hub, else its last part."""
    if address.scheme == "hf" and not address.path and is_model_name(address.repository):
        return address.repository
    return _name(address.name)


def _read_entries(path: str, note: Callable[[str], None]) -> "list[ModelEntry | SourceAddress]":
    """Return the model at a path, or those in a folder, by the names of their folders. Raises ValueError for too many.

    Folders are not searched below that. `note`: called with the subfolders without a model.
    """
    folder = Path(path).absolute()
    entry = _read_with_versions(folder)
    if entry is not None:
        return [entry]
    lacks_weights = any((folder / name).exists() for name in _FILES_OF_A_MODEL) and not _is_folder_of_ggufs(folder)
    if lacks_weights or not folder.is_dir():
        return []
    children = sorted(islice(folder.iterdir(), _MAX_CHILDREN + 1))
    if len(children) > _MAX_CHILDREN:
        raise ValueError(f"expected at most {_MAX_CHILDREN} files and folders, got more; name the models themselves")
    shown = [child for child in children if not child.name.startswith(".")]
    entries = {child: _read_with_versions(child) for child in shown}
    found: list[ModelEntry | SourceAddress] = [each for each in entries.values() if each is not None]
    if len(found) > _MAX_MODELS:
        raise ValueError(f"expected at most {_MAX_MODELS} models in a folder, got {len(found)}; name fewer of them")
    without = [child.name for child, each in entries.items() if each is None and child.is_dir()]
    if found and without:
        more = f" and {len(without) - _MAX_NOTED} more" if len(without) > _MAX_NOTED else ""
        note(f"{path}: folders without a model are skipped: {', '.join(without[:_MAX_NOTED])}{more}")
    return found


def _read_with_versions(path: Path) -> ModelEntry | None:
    """Return the entry of a model; of a folder of versions with the kind of the newest one."""
    entry = None if _is_folder_of_ggufs(path) else _read_entry(path)
    if entry is not None or not path.is_dir():
        return entry
    newest = list(find_versions(path).values())[-1]
    entry = None if newest == path else _read_entry(newest)
    return None if entry is None else entry.model_copy(update={"name": _name(path.name), "path": path})


def _is_folder_of_ggufs(path: Path) -> bool:
    """Whether each GGUF file of a folder is a model: it has several, and no other weights."""
    if not path.is_dir() or (path / "model.onnx").exists() or any(path.glob("*.safetensors")):
        return False
    return len(list(islice((each for each in path.glob(f"*{_GGUF}") if is_gguf(each)), 2))) > 1


def _read_entry(path: Path) -> ModelEntry | None:
    framework = framework_of(path)
    if framework is None:
        return None
    is_graph_of_folder = path.suffix == ".onnx" and path.stem == "model"
    name = path.name if path.is_dir() else path.parent.name if is_graph_of_folder else path.stem
    return (OnnxModelEntry if framework == "onnx" else TorchModelEntry)(name=_name(name), path=path)


def _name(text: str) -> str:
    """Return the name of a file or folder as a model's name: characters that a URL would escape become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:128] or "model"
