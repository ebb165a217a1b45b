"""Tell whether the files of a version have changed since its load."""

import os
from pathlib import Path

from frameworks.models.versions.version_folders import is_version_folder

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
