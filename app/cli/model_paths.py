"""Add the models of `roundhouse serve PATH …` to the settings; name and framework come from the path or the files."""

import re
from collections.abc import Callable
from pathlib import Path

from app.config import ConfigError, ConfigIssue, Settings
from frameworks.addresses import SourceAddress, is_address, parse_address
from frameworks.models.local_files import framework_of
from frameworks.names import is_model_name, last_part
from frameworks.settings import ModelEntry, OnnxModelEntry, TorchModelEntry
from frameworks.sources.contract import Framework

_NOT_A_MODEL = (
    "expected an .onnx or .gguf file, or a folder with model.onnx, *.safetensors or one .gguf file, or an address like "
    "hf://org/name, or the org/name of a hub"
)
_GGUF = ".gguf"
_HUB_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._-]+)?", re.ASCII)


def with_models(
    settings: Settings, paths: list[str], fetch: Callable[[SourceAddress], Framework] | None = None
) -> Settings:
    """Return the settings with one more model per path or address. Raises ConfigError for those without a model.

    A repository of a hub is served as `org/name`, with the alias `name` if no other model has it.

    `fetch`: fetches the model of an address and returns its framework; its errors are raised. It is called when all
    other models are valid. None: only local paths are accepted.
    """
    if not paths:
        return settings
    models = settings.models
    found: list[ModelEntry | SourceAddress] = []
    taken = {name for entry in (*models.onnx_models, *models.torch_models) for name in entry.names}
    taken.update(name for pipeline in settings.pipelines for name in pipeline.names)
    issues = []
    for path in paths:
        each: ModelEntry | SourceAddress | None
        try:
            each = (address_of(path) if fetch is not None else None) or _read_entry(Path(path).absolute())
        except ValueError as error:
            issues.append(ConfigIssue("command line", None, path, str(error), "invalid"))
            continue
        if each is None:
            issues.append(ConfigIssue("command line", None, path, _NOT_A_MODEL, "not_found"))
            continue
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
