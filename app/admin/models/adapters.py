"""Route /models/{name}/adapters: add LoRA adapters to a model at run time, and remove them."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.admin.bodies import describe_body, read_object
from app.admin.models.allowed_paths import AllowedPaths
from app.admin.models.descriptions import describe_in_detail
from app.admin.models.schemas import Deleted, ModelDetail
from app.admin.views import Views
from app.http.routes.model_paths import NAME
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.inference.context import ADAPTER_MARK
from app.inference.lifecycle import Lifecycle
from app.protocols.native.fields import ErrorResponse
from app.protocols.shared import bodies
from app.protocols.shared.bodies import Body
from frameworks.core.addresses import is_address
from frameworks.core.errors import InvalidInput
from frameworks.core.settings.adapters import NAME_PATTERN, AdapterEntry

_EXAMPLE = {"name": "support", "path": "./models/llama-support"}


class NewAdapter(Body):
    """An adapter in the format of PEFT. Requests name it as `model:name`."""

    name: str = Field(pattern=NAME_PATTERN)
    path: str = Field(pattern=r"\S", description="Folder of the adapter, below one of models.roots.")


class AdaptersApi:
    """Handlers of the routes."""

    def __init__(self, views: Views, lifecycle: Lifecycle, paths: AllowedPaths, max_body_bytes: int) -> None:
        """`paths`: those that may be registered."""
        self._views = views
        self._lifecycle = lifecycle
        self._paths = paths
        self._max_body_bytes = max_body_bytes

    def router(self) -> APIRouter:
        router = APIRouter(tags=["models"])
        path, body = f"/models/{NAME}/adapters", describe_body(bodies.schema_of(NewAdapter), example=_EXAMPLE)
        summary = "Load a LoRA adapter of a model"
        add_route(router, "POST", path, self.add_adapter, summary, ModelDetail, ErrorResponse, status=201, extra=body)
        path, summary = f"{path}/{{adapter}}", "Unload a LoRA adapter of a model"
        add_route(router, "DELETE", path, self.delete_adapter, summary, Deleted, ErrorResponse)
        return router

    async def add_adapter(self, name: str, request: Request) -> Response:
        """Load an adapter into the model while it serves. The response follows when requests may name it."""
        self._lifecycle.check_accepting()
        view = self._views.for_request(request)
        view.models.slot(name)
        body = bodies.read_body(NewAdapter, await read_object(request, self._max_body_bytes))
        if is_address(body.path):
            raise InvalidInput("path", "expected the path of a folder, got an address; download the adapter")
        if "\0" in body.path:
            raise InvalidInput("path", "expected the path of a folder, got one with a NUL; correct it")
        path = self._paths.check(Path(body.path))
        slot = await view.models.add_adapter(name, AdapterEntry(name=body.name, path=path))
        await view.counts.refresh()
        return json_response(describe_in_detail(slot, view.counts), 201)

    async def delete_adapter(self, name: str, adapter: str, request: Request) -> Response:
        """Unload an adapter. The response follows when the requests that use it have completed."""
        await self._views.for_request(request).models.remove_adapter(name, adapter)
        return json_response({"deleted": f"{name}{ADAPTER_MARK}{adapter}"})
