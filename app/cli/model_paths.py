"""Add the models of `roundhouse serve PATH …` to the settings; name and framework come from the path."""

import re
from pathlib import Path

from app.config import ConfigError, ConfigIssue, Settings
from frameworks.settings import ModelEntry, OnnxModelEntry, TorchModelEntry

_NOT_A_MODEL = "expected an .onnx file, or a folder with model.onnx or *.safetensors"


def with_models(settings: Settings, paths: list[str]) -> Settings:
    """Return the settings with one more model per path. Raises ConfigError for paths without a model."""
    if not paths:
        return settings
    models = settings.models
    onnx, torch = list(models.onnx_models), list(models.torch_models)
    taken = {entry.name for entry in (*onnx, *torch)}
    issues = []
    for path in paths:
        entry = _read_entry(Path(path).absolute())
        if entry is None:
            issues.append(ConfigIssue("command line", None, path, _NOT_A_MODEL, "not_found"))
        elif entry.name in taken:
            message = f'expected a unique name, got "{entry.name}" again; name the models in a config file'
            issues.append(ConfigIssue("command line", None, path, message, "duplicate"))
        else:
            taken.add(entry.name)
            (onnx if isinstance(entry, OnnxModelEntry) else torch).append(entry)  # type: ignore[arg-type]
    if issues:
        raise ConfigError(issues)
    return settings.model_copy(
        update={"models": models.model_copy(update={"onnx_models": tuple(onnx), "torch_models": tuple(torch)})}
    )


def _read_entry(path: Path) -> ModelEntry | None:
    if path.is_file() and path.suffix == ".onnx":
        return OnnxModelEntry(name=_name(path.parent.name if path.stem == "model" else path.stem), path=path)
    if (path / "model.onnx").is_file():
        return OnnxModelEntry(name=_name(path.name), path=path)
    if path.is_dir() and any(path.glob("*.safetensors")):
        return TorchModelEntry(name=_name(path.name), path=path)
    return None


def _name(text: str) -> str:
    """Return the name of a file or folder as a model's name: characters that a URL would escape become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:128] or "model"
