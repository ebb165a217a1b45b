"""Serve GET /models/{name}/files and the files themselves."""

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from app.admin.monitoring.file_sending import ModelFileSender, folder_of, read_version
from app.http.routes.model_paths import NAME
from app.http.routes.openapi import describe_responses
from app.http.routes.responses import AsgiResponse, json_response
from app.protocols.native.fields import ErrorResponse
from app.protocols.shared.bodies import ResponseBody


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
        files = await asyncio.to_thread(folder_of(version).list_files)
        described = [{"path": each.path, "bytes": each.size, "quantized": each.quantized} for each in files]
        return json_response({"model": slot.name, "version": version.version, "files": described})

    async def file(self, name: str, rest: str) -> Response:
        """Fetch a file of `GET /models/{name}/files`. Range, If-Range and If-None-Match are understood."""
        return AsgiResponse(partial(self._files.send, name, rest))
