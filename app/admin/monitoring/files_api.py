"""Serve GET /models/{name}/files and the files themselves, to run a model elsewhere: in the browser, for example."""

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from app.admin.monitoring.model_files import ModelFolder
from app.auth.errors import Forbidden
from app.auth.permissions import compile_path
from app.auth.principal import Principal
from app.http.file_responses import FileSender
from app.http.model_paths import NAME
from app.http.openapi import describe_responses
from app.http.responses import AsgiResponse, json_response
from app.inference.model_view import ModelView
from app.protocols.native.fields import ErrorResponse
from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.codec import Header
from frameworks.core.errors import InvalidInput
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion

_FILE_PATH = compile_path("/models/{name}/files/{rest:path}")
_HEADERS: tuple[Header, ...] = (
    # The client keeps it, and asks whether it has changed. Other users of a shared cache have other keys.
    (b"cache-control", b"private, no-cache"),
    (b"content-disposition", b"attachment"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class FileDescription(ResponseBody):
    """A file of a model. `quantized`: it is of the quantized copy that the server runs, not of the model's folder."""

    path: str
    bytes: int
    quantized: bool


class FileList(ResponseBody):
    """The files of one version of a model."""

    model: str
    version: str
    files: list[FileDescription]


class ModelFileSender:
    """Send the files of the models that the sender of a request may use. Owned by the event loop."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._sender = FileSender()

    def folder(self, principal: Principal, name: str, version: str | None) -> tuple[ModelSlot, ModelVersion]:
        """Return the version whose files are wanted; None for the active one.

        Raises ModelNotFound, VersionNotFound; Forbidden for a model whose files may not be fetched.
        """
        slot = ModelView(self._models, principal).slot(name)
        if not slot.entry.downloadable:
            raise Forbidden(
                f'model "{name}": expected downloadable = true in its entry, got false; set it to let clients fetch '
                "the files"
            )
        return slot, slot.active if version is None else slot.find(version)

    async def send(self, name: str, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a file. Raises NotFound, Overloaded, and the errors of `folder`."""
        _, found = self.folder(scope["record"].principal, name, read_version(scope["query_string"]))
        opened = await asyncio.to_thread(_folder(found).open, path)
        try:
            etag = b'"%x-%x"' % (opened.modified_ns, opened.size)
            content_type = b"application/json" if path.endswith(".json") else b"application/octet-stream"
            await self._sender.send(opened, etag, [(b"content-type", content_type), *_HEADERS], scope, receive, send)
        finally:
            os.close(opened.descriptor)


class ModelFilesApi:
    """Handlers of the routes."""

    def __init__(self, files: ModelFileSender) -> None:
        self._files = files

    def router(self) -> APIRouter:
        router = APIRouter(tags=["models"])
        version = {"name": "version", "in": "query", "required": False, "schema": {"type": "string"},
                   "description": "Default: the active version."}  # fmt: skip
        content: dict[int | str, dict[str, Any]] = {
            200: {"content": {"application/octet-stream": {}}, "description": "The file."},
            206: {"content": {"application/octet-stream": {}}, "description": "The range of the Range header."},
            304: {"description": "The client has it, as If-None-Match says."},
        }
        listed = describe_responses(FileList, ErrorResponse)
        for path, handler, summary, responses in (
            (f"/models/{NAME}/files", self.list_files, "List the files of a model", listed),
            (f"/models/{NAME}/files/{{rest:path}}", self.file, "Fetch a file of a model", listed | content),
        ):
            router.add_api_route(
                path,
                handler,
                methods=["GET"],
                summary=summary,
                response_class=Response,
                responses=responses,
                openapi_extra={"parameters": [version]},
            )
        return router

    async def list_files(self, name: str, request: Request) -> Response:
        """List the files of a model whose entry has `downloadable = true`."""
        slot, version = self._files.folder(
            request.scope["record"].principal, name, read_version(request.scope["query_string"])
        )
        files = await asyncio.to_thread(_folder(version).list_files)
        described = [{"path": each.path, "bytes": each.size, "quantized": each.quantized} for each in files]
        return json_response({"model": slot.name, "version": version.version, "files": described})

    async def file(self, name: str, rest: str) -> Response:
        """Fetch a file of `GET /models/{name}/files`. Range, If-Range and If-None-Match are understood."""
        return AsgiResponse(partial(self._files.send, name, rest))


def file_of(path: str) -> tuple[str, str] | None:
    """Return the model and the file that a path names, as `/models/a/files/model.onnx`; None for another path."""
    match = _FILE_PATH.fullmatch(path)
    return (match["name"], match["rest"]) if match is not None and match["rest"] else None


def read_version(query: bytes) -> str | None:
    """Return the version that a query names; None without one. Raises InvalidInput for any other query."""
    name, _, value = query.decode("latin-1").partition("=")
    if not query:
        return None
    if name != "version" or not value.isdecimal() or len(value) > 19:
        raise InvalidInput("query", "expected version=N, or nothing, got another query; remove it")
    return value


def _folder(version: ModelVersion) -> ModelFolder:
    spec = version.spec
    graph = None if spec is None or spec.quantized_graph is None else Path(spec.quantized_graph)
    return ModelFolder(version.path, graph)
