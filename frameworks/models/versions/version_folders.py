"""Find the versions below a model's path, tell their framework, and whether their files have changed."""

import os
import re
from pathlib import Path

from frameworks.core.files import find_graph, is_gguf
from frameworks.core.settings.entry_values import VersionPolicy
from frameworks.sources.contract import Framework

ONLY_VERSION = "1"
"""The version of a model whose path has no version folders."""

_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def find_versions(path: Path) -> dict[str, Path]:
    """Map versions to paths, oldest first. A path without numbered folders is version "1" itself."""
    try:
        numbered = [each for each in path.iterdir() if is_version_folder(each)]
    except OSError:  # a file, or absent: the load reports the reason
        numbered = []
    if not numbered:
        return {ONLY_VERSION: path}
    return {each.name: each for each in sorted(numbered, key=lambda folder: int(folder.name))}


def is_version_folder(path: Path) -> bool:
    return _NUMBER.fullmatch(path.name) is not None and path.is_dir()


def served_versions(found: list[str], policy: VersionPolicy) -> list[str]:
    """Return the versions, oldest first, that the `version_policy` of an entry serves."""
    if policy == "all":
        return found
    if policy == "latest":
        return found[-1:]
    return [version for version in found if int(version) in policy]


def version_of(file: Path, folder: Path) -> str | None:
    """Return the version whose folder below `folder` holds a file; None for other files."""
    try:
        first = file.relative_to(folder).parts[:1]
    except ValueError:
        return None
    return first[0] if first and _NUMBER.fullmatch(first[0]) else None


FilesState = frozenset[tuple[str, int, int, int]]
"""Path, size, modification time (ns) and inode of each file. Reading it does not open the files."""


def files_state(path: Path) -> FilesState:
    """Return the state of a model file and the files whose names begin with its name, or of all files in a folder.

    Version folders and hidden files are not of the version. Files that cannot be read are left out. Blocks.
    """
    if not path.is_dir():
        return frozenset(state for file in _siblings(path) if (state := _state_of(file)))
    states = set()
    for folder, names, files in os.walk(path):
        names[:] = [name for name in names if not name.startswith(".") and not is_version_folder(Path(folder, name))]
        for name in files:
            state = None if name.startswith(".") else _state_of(Path(folder, name))
            if state is not None:
                states.add(state)
    return frozenset(states)


def _siblings(path: Path) -> list[Path]:
    """Return a model file and its external data, as `model.onnx` and `model.onnx.data`."""
    try:
        return [each for each in path.parent.iterdir() if each.name.startswith(path.name) and each.is_file()]
    except OSError:
        return []


def _state_of(file: Path) -> tuple[str, int, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return str(file), state.st_size, state.st_mtime_ns, state.st_ino


EXPECTED_FILES = "an .onnx or .gguf file, or a folder with model.onnx, onnx/model.onnx, *.safetensors or one .gguf file"


def framework_of(path: Path) -> Framework | None:
    """Return the framework of one version, a file or a folder; None if it is no model. Blocks."""
    if path.is_file():
        return "onnx" if path.suffix == ".onnx" else "pytorch" if is_gguf(path) else None
    graph = find_graph(path)
    if graph is not None and graph.parent == path:
        return "onnx"
    try:
        has_weights = any(each.suffix == ".safetensors" or is_gguf(each) for each in path.iterdir())
    except OSError:  # absent, or not readable
        return None
    if has_weights:
        return "pytorch"
    return None if graph is None else "onnx"


def framework_of_model(path: Path) -> Framework | None:
    """Return as `framework_of`, for the newest version where the path has version folders. Blocks."""
    return framework_of(list(find_versions(path).values())[-1])
