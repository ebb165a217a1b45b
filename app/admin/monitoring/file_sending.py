"""Send the files of models, to run a model elsewhere: in the browser, for example."""

import asyncio
import os
from pathlib import Path

from starlette.types import Receive, Scope, Send

from app.admin.monitoring.model_files import ModelFolder
from app.auth.errors import Forbidden
from app.auth.permissions import compile_path
from app.auth.principal import Principal
from app.http.file_responses import FileSender
from app.inference.model_view import ModelView
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
        opened = await asyncio.to_thread(folder_of(found).open, path)
        try:
            etag = b'"%x-%x"' % (opened.modified_ns, opened.size)
            content_type = b"application/json" if path.endswith(".json") else b"application/octet-stream"
            await self._sender.send(opened, etag, [(b"content-type", content_type), *_HEADERS], scope, receive, send)
        finally:
            os.close(opened.descriptor)


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


def folder_of(version: ModelVersion) -> ModelFolder:
    """Return the folder of a version's files."""
    spec = version.spec
    graph = None if spec is None or spec.quantized_graph is None else Path(spec.quantized_graph)
    return ModelFolder(version.path, graph)
