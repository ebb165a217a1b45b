"""Find the files of a model that a client may fetch: those of its folder, and the quantized graph that runs."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from app.http.file_responses import OpenedFile, open_regular
from app.protocols.shared.errors import NotFound
from frameworks.core.files import find_graph

_MOST_FILES = 1000
_MOST_DEPTH = 8
_MOST_CHARACTERS = 1024
_REPORT = "report.json"


class ModelFile(NamedTuple):
    """`path`: below the folder of the model, with `/`. `file`: absolute. `quantized`: it is of the quantized copy."""

    path: str
    file: Path
    size: int
    quantized: bool


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The files of one version. `root`: its folder, or its only file. `graph`: the quantized graph, in a folder of
    its own; None: the model runs its own files. All methods block.
    """

    root: Path
    graph: Path | None = None

    def list_files(self) -> list[ModelFile]:
        """Return the files in the order of their paths, at most 1000.

        Names that begin with a dot, and links to files elsewhere, are left out. Raises OSError.
        """
        found = {each.path: each for each in self._own_files()}
        found |= {each.path: each for each in self._quantized_files()}
        return [found[path] for path in sorted(found)]

    def open(self, path: str) -> OpenedFile:
        """Open a file of `list_files`; close its descriptor. Raises NotFound."""
        parts = PurePosixPath(path).parts
        is_plain = len(path) <= _MOST_CHARACTERS and "\0" not in path and "\\" not in path
        if not is_plain or not parts or any(part.startswith(".") or part == "/" for part in parts):
            raise _absent(path)
        if str(PurePosixPath(path)) != path or len(parts) > _MOST_DEPTH:
            raise _absent(path)
        replaced = next((each for each in self._quantized_files() if each.path == path), None)
        if replaced is not None:
            return _open(replaced.file, path)
        if not self.root.is_dir():
            if path != self.root.name:
                raise _absent(path)
            return _open(self.root.resolve(), path)
        root = self.root.resolve()
        try:
            file = (root / path).resolve(strict=True)
        except (OSError, RuntimeError):  # links in a circle are a RuntimeError before Python 3.13
            raise _absent(path) from None
        if not file.is_relative_to(root):
            raise _absent(path)
        return _open(file, path)

    def _own_files(self) -> list[ModelFile]:
        if not self.root.is_dir():
            return [ModelFile(self.root.name, self.root, self.root.stat().st_size, False)]
        root = self.root.resolve()
        found: list[ModelFile] = []
        for parent, folders, names in os.walk(root):
            depth = len(Path(parent).relative_to(root).parts) + 1
            folders[:] = sorted(name for name in folders if not name.startswith(".") and depth < _MOST_DEPTH)
            for name in sorted(names):
                file = Path(parent, name)
                if name.startswith(".") or not _is_inside(file, root):
                    continue
                found.append(ModelFile(file.relative_to(root).as_posix(), file, file.stat().st_size, False))
                if len(found) == _MOST_FILES:
                    return found
        return found

    def _quantized_files(self) -> list[ModelFile]:
        """Return the quantized graph under the name of the original, and its weights beside it."""
        if self.graph is None or not self.graph.is_file():
            return []
        original = find_graph(self.root) if self.root.is_dir() else None
        name = self.root.name if original is None else original.relative_to(self.root).as_posix()
        folder = PurePosixPath(name).parent
        others = [each for each in sorted(self.graph.parent.iterdir()) if each.is_file()]
        return [
            ModelFile(name if each == self.graph else (folder / each.name).as_posix(), each, each.stat().st_size, True)
            for each in others
            if each.name != _REPORT
        ]


def _open(file: Path, path: str) -> OpenedFile:
    try:
        return open_regular(file)
    except OSError:
        raise _absent(path) from None


def _is_inside(file: Path, root: Path) -> bool:
    try:
        resolved = file.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    return resolved.is_relative_to(root) and resolved.is_file()


def _absent(path: str) -> NotFound:
    return NotFound(f"file: expected a file of the model, got {path[:200]!r}; GET …/files lists them")
