"""`roundhouse serve PATH …`: models that need no config; name and framework come from the path."""

import re
from pathlib import Path

from app.config import ConfigError, Settings
from app.config.faults import Fault
from frameworks.settings import ModelEntry, OnnxModelEntry, TorchModelEntry


def with_models(settings: Settings, paths: list[str]) -> Settings:
    """The settings with a model more per path. Raises ConfigError for paths that lead to no model."""
    if not paths:
        return settings
    models = settings.models
    onnx, torch = list(models.onnx_models), list(models.torch_models)
    taken = {entry.name for entry in (*onnx, *torch)}
    faults = []
    for text in paths:
        entry = _entry(Path(text).absolute())
        if entry is None:
            faults.append(
                Fault(
                    "command line",
                    None,
                    text,
                    "no .onnx file, and no folder with model.onnx or *.safetensors",
                    "not_found",
                )
            )
        elif entry.name in taken:
            faults.append(
                Fault(
                    "command line",
                    None,
                    text,
                    f'a second model would be named "{entry.name}"; use a config',
                    "duplicate",
                )
            )
        else:
            taken.add(entry.name)
            (onnx if isinstance(entry, OnnxModelEntry) else torch).append(entry)  # type: ignore[arg-type]
    if faults:
        raise ConfigError(faults)
    return settings.model_copy(
        update={"models": models.model_copy(update={"onnx_models": tuple(onnx), "torch_models": tuple(torch)})}
    )


def _entry(path: Path) -> ModelEntry | None:
    if path.is_file() and path.suffix == ".onnx":
        return OnnxModelEntry(name=_name(path.parent.name if path.stem == "model" else path.stem), path=path)
    if (path / "model.onnx").is_file():
        return OnnxModelEntry(name=_name(path.name), path=path)
    if path.is_dir() and any(path.glob("*.safetensors")):
        return TorchModelEntry(name=_name(path.name), path=path)
    return None


def _name(text: str) -> str:
    """A model's name from a file's: what a URL would not carry becomes a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:128] or "model"
