"""Tell which framework loads the files of a model on this machine."""

from pathlib import Path

from frameworks.core.files import find_graph
from frameworks.models.versions.version_folders import find_versions
from frameworks.sources.contract import Framework

GGUF = ".gguf"
EXPECTED_FILES = "an .onnx or .gguf file, or a folder with model.onnx, onnx/model.onnx, *.safetensors or one .gguf file"


def framework_of(path: Path) -> Framework | None:
    """Return the framework of one version, a file or a folder; None if it is no model. Blocks."""
    if path.is_file():
        return "onnx" if path.suffix == ".onnx" else "pytorch" if path.suffix.lower() == GGUF else None
    graph = find_graph(path)
    if graph is not None and graph.parent == path:
        return "onnx"
    try:
        has_weights = any(each.suffix == ".safetensors" or each.suffix.lower() == GGUF for each in path.iterdir())
    except OSError:  # absent, or not readable
        return None
    if has_weights:
        return "pytorch"
    return None if graph is None else "onnx"


def framework_of_model(path: Path) -> Framework | None:
    """Return as `framework_of`, for the newest version where the path has version folders. Blocks."""
    return framework_of(list(find_versions(path).values())[-1])
