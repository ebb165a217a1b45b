"""Serve GET /folders: the models below `models.roots`, which `POST /models` may register."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Request, Response

from app.admin.models.allowed_paths import AllowedPaths
from app.admin.views import Views
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.protocols.shared.bodies import ResponseBody
from frameworks.core.files import find_graph
from frameworks.models.versions.version_folders import ONLY_VERSION, find_versions, framework_of

_MOST_FOLDERS = 500
_MOST_LOOKED_AT = 5000
_MOST_DEPTH = 2
_DERIVED = frozenset({"quantized", "sources"})
"""Folders of `models.cache_dir`, which have no models of their own."""


class FolderDescription(ResponseBody):
    """A file or folder with a model. `path`: as `POST /models` accepts it. `registered_as`: models with this path that
    the key may use.
    """

    path: str
    framework: Literal["onnx", "pytorch"]
    versions: list[str]
    bytes: int
    registered_as: list[str]


class FolderList(ResponseBody):
    """The files and folders with models, in the order of their paths. `is_cut`: there are more."""

    folders: list[FolderDescription]
    is_cut: bool


class FoundModel(NamedTuple):
    """`path`: below its root. `size`: of its files directly in it, and in its version folders."""

    path: Path
    framework: Literal["onnx", "pytorch"]
    versions: list[str]
    size: int


class FoldersApi:
    """Handler of the route."""

    def __init__(self, views: Views, paths: AllowedPaths) -> None:
        self._views = views
        self._paths = paths

    def router(self) -> APIRouter:
        router = APIRouter(tags=["models"])
        add_route(router, "GET", "/folders", self.list_folders, "List models that may be registered", FolderList)
        return router

    async def list_folders(self, request: Request) -> Response:
        """List the files and folders with models in `models.roots`, down to two folders deep."""
        slots = self._views.for_request(request).models.slots
        registered = [(slot.name, slot.path) for slot in slots if not slot.has_address]
        return json_response(await asyncio.to_thread(self._describe, registered))

    def _describe(self, registered: list[tuple[str, Path]]) -> dict[str, Any]:
        """Return a FolderList. `registered`: names and paths of models. Blocks."""
        named: dict[str, list[str]] = {}
        for name, path in registered:
            named.setdefault(os.path.realpath(path), []).append(name)
        found = find_models(self._paths.roots)
        described = [
            {
                "path": _printable(each.path, self._paths.base_dir),
                "framework": each.framework,
                "versions": each.versions,
                "bytes": each.size,
                "registered_as": named.get(os.path.realpath(each.path), []),
            }
            for each in found[:_MOST_FOLDERS]
        ]
        return {"folders": described, "is_cut": len(found) > _MOST_FOLDERS}


def find_models(roots: tuple[Path, ...]) -> list[FoundModel]:
    """Return the models below the roots, at most one more than are shown. Blocks.

    Folders that cannot be read are empty. Links out of their root are left out, as `POST /models` refuses them.
    """
    found: dict[Path, FoundModel] = {}
    left = _MOST_LOOKED_AT
    for root in roots:
        real = Path(os.path.realpath(root))
        for path in _paths(real, 0):
            left -= 1
            model = _model_at(path) if path.is_relative_to(real) else None
            if model is not None:
                found.setdefault(path, model._replace(path=root / path.relative_to(real)))
            if left <= 0 or len(found) > _MOST_FOLDERS:
                return [found[path] for path in sorted(found)]
    return [found[path] for path in sorted(found)]


def _paths(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files and folders that may be models, parents first. A folder with a model is not searched further."""
    for path in _listed(folder):
        yield path
        if depth < _MOST_DEPTH - 1 and path.is_dir() and path.name not in _DERIVED and _model_at(path) is None:
            yield from _paths(path, depth + 1)


def _listed(folder: Path) -> list[Path]:
    try:
        names = sorted(each.name for each in os.scandir(folder) if not each.name.startswith("."))
    except OSError:
        return []
    return [Path(os.path.realpath(folder / name)) for name in names]


def _model_at(path: Path) -> FoundModel | None:
    versions = find_versions(path)
    newest = list(versions.values())[-1]
    framework = framework_of(newest)
    if framework is None:
        return None
    size = sum(_size(file) for folder in versions.values() for file in _files_of(folder))
    return FoundModel(path, framework, [] if list(versions) == [ONLY_VERSION] else list(versions), size)


def _files_of(path: Path) -> list[Path]:
    """Return a file itself, or the files of a model's folder and of the folder of its graph."""
    if not path.is_dir():
        return [path]
    graph = find_graph(path)
    return [*_listed(path), *(() if graph is None or graph.parent == path else _listed(graph.parent))]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _printable(path: Path, base: Path) -> str:
    """Return a path as an entry of the config file would have it."""
    shown = f"./{path.relative_to(base).as_posix()}" if path.is_relative_to(base) else str(path)
    return shown.encode("utf-8", "replace").decode()
