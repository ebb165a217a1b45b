"""Route /v2 except inference: health, metadata, configuration, statistics and the model repository."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from app.admin.bodies import describe_optional, read_optional
from app.admin.facts import LIVE_BODIES
from app.admin.open_inference import schemas
from app.admin.open_inference.management import Management
from app.admin.open_inference.metadata import EXTENSIONS, server_metadata
from app.admin.views import View, Views
from app.http.routes.model_paths import NAME
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.protocols.open_inference.errors import OpenInferenceErrorResponse
from app.protocols.shared.errors import NotSupported

Describe = Callable[[View, str, str], Awaitable[dict[str, Any]]]
"""View of the sender, model and version ("" for the active one) -> body of the response."""

# Paths below /v2 that Triton's clients call and that this server does not support.
_UNSUPPORTED = ("systemsharedmemory", "cudasharedmemory", "trace", "logging", f"models/{NAME}/trace")


class OpenInferenceApi:
    """Handlers of the routes; Management computes the responses."""

    def __init__(self, management: Management, views: Views, max_body_bytes: int) -> None:
        self._management = management
        self._view = views.for_request
        self._max_body_bytes = max_body_bytes

    def router(self) -> APIRouter:
        router = APIRouter(tags=["open_inference"])
        self._add_descriptions(router)
        self._add_repository(router)
        for extension in _UNSUPPORTED:
            for path in (f"/v2/{extension}", f"/v2/{extension}/{{rest:path}}"):
                router.add_api_route(path, _refuse, methods=["GET", "POST"], include_in_schema=False)
        return router

    def _add_descriptions(self, router: APIRouter) -> None:
        def get(path: str, handler: Callable[..., Any], summary: str, response: type[BaseModel]) -> None:
            add_route(router, "GET", path, handler, summary, response, OpenInferenceErrorResponse)

        get("/v2", self.show_server, "Name, version and extensions of the server", schemas.ServerMetadata)
        get("/v2/health/live", self.show_live, "Whether the process is alive", schemas.ServerLive)
        get("/v2/health/ready", self.show_ready, "Whether the server is ready", schemas.ServerReady)
        get("/v2/models/stats", self.show_statistics, "Statistics of all models", schemas.ModelStatisticsList)
        describe: Describe
        metadata, configuration = (
            partial(each, may_load=False)
            for each in (self._management.model_metadata, self._management.model_configuration)
        )
        for path, summary, describe, response in (
            ("", "Inputs and outputs of a model", metadata, schemas.ModelMetadata),
            ("/ready", "Whether a model is ready", self._model_ready, schemas.ModelReady),
            ("/config", "Configuration of a model", configuration, schemas.ModelConfiguration),
            ("/stats", "Statistics of a model", self._management.model_statistics, schemas.ModelStatisticsList),
        ):
            get(f"/v2/models/{NAME}{path}", self._of_model(describe), summary, response)
            get(f"/v2/models/{NAME}/versions/{{version}}{path}", self._of_version(describe), summary, response)

    def _add_repository(self, router: APIRouter) -> None:
        def post(path: str, handler: Callable[..., Any], summary: str, response: type[BaseModel], **more: Any) -> None:
            path = f"/v2/repository{path}"
            add_route(router, "POST", path, handler, summary, response, OpenInferenceErrorResponse, **more)

        body, done = describe_optional(schemas.RepositoryIndexRequest), schemas.RepositoryModelResponse
        post("/index", self.show_index, "All versions of all models", schemas.ModelIndex, is_list=True, extra=body)
        body = describe_optional(schemas.RepositoryLoadRequest)
        post(f"/models/{NAME}/load", self.load, "Load a model and its new versions", done, extra=body)
        body = describe_optional(schemas.RepositoryUnloadRequest)
        post(f"/models/{NAME}/unload", self.unload, "Unload a model after its running requests", done, extra=body)

    async def show_server(self) -> Response:
        return json_response(server_metadata())

    async def show_live(self) -> Response:
        return json_response(LIVE_BODIES["/v2/health/live"])

    async def show_ready(self, request: Request) -> Response:
        """Return 200 when every start-up model is ready; 503 before, and during the drain."""
        error = self._management.why_not_ready(self._view(request))
        if error is not None:
            raise error
        return json_response({"ready": True})

    async def show_statistics(self, request: Request) -> Response:
        """Show the counts of the key's tenant, or for an operator those of all tenants."""
        return json_response(await self._management.model_statistics(self._view(request)))

    async def show_index(self, request: Request) -> Response:
        """List the versions of the models that the key may use. With `ready`: only those that accept requests."""
        body = await read_optional(schemas.RepositoryIndexRequest, request, self._max_body_bytes, True)
        return json_response(self._management.repository_index(self._view(request), body.ready))

    async def load(self, name: str, request: Request) -> Response:
        """Load a model. The response follows when the model is ready."""
        body = await read_optional(schemas.RepositoryLoadRequest, request, self._max_body_bytes, True)
        await self._management.load(self._view(request), name, body.parameters)
        return json_response({})

    async def unload(self, name: str, request: Request) -> Response:
        """Unload a model. The response follows when its running requests have completed.

        After `drain_timeout_s` they are ended; only batches that are being computed are still answered.
        """
        body = await read_optional(schemas.RepositoryUnloadRequest, request, self._max_body_bytes, True)
        await self._management.unload(self._view(request), name, body.parameters.drain_timeout_s)
        return json_response({})

    async def _model_ready(self, view: View, name: str, version: str) -> dict[str, Any]:
        error = self._management.why_model_not_ready(view, name, version)
        if error is not None:
            raise error
        return {"name": name, "ready": True}

    def _of_model(self, describe: Describe) -> Callable[[str, Request], Awaitable[Response]]:
        async def of_model(name: str, request: Request) -> Response:
            return json_response(await describe(self._view(request), name, ""))

        return of_model

    def _of_version(self, describe: Describe) -> Callable[[str, str, Request], Awaitable[Response]]:
        async def of_version(name: str, version: str, request: Request) -> Response:
            return json_response(await describe(self._view(request), name, version))

        return of_version


async def _refuse(request: Request) -> Response:
    raise NotSupported(
        f"{request.url.path[:200]} belongs to an extension that this server does not support; "
        f"it supports {', '.join(EXTENSIONS)}"
    )
