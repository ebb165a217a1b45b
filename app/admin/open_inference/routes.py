"""/v2 beside inference: health, metadata, configuration, statistics and the repository. FastAPI's routes."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from app.admin.models import parse_object
from app.admin.open_inference import descriptions
from app.admin.open_inference.management import Management
from app.admin.open_inference.metadata import EXTENSIONS, server_metadata
from app.http.wire import json_answer, read_body
from app.protocols.codec import Header, check_media_type
from app.protocols.errors import EmptyBody, NotSupported
from app.protocols.open_inference.errors import OpenInferenceErrorResponse
from frameworks.errors import InvalidInput

Tell = Callable[[str, str], Awaitable[dict[str, Any]]]
"""Model and version, "" where none is named → what is told of it."""

_FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": OpenInferenceErrorResponse},
    "5XX": {"model": OpenInferenceErrorResponse},
}
_NOT_HERE = ("systemsharedmemory", "cudasharedmemory", "trace", "logging", "models/{model}/trace")
"""Below /v2: what Triton's clients have calls for, and this server has not."""


class OpenInferenceApi:
    """The handlers; what they answer is Management's."""

    def __init__(self, management: Management, max_body_bytes: int) -> None:
        self._management = management
        self._max_body_bytes = max_body_bytes

    def router(self) -> APIRouter:
        router = APIRouter(tags=["open_inference"])
        add = router.add_api_route

        def get(path: str, handler: Callable[..., Any], summary: str, answer: type[BaseModel]) -> None:
            add(path, handler, methods=["GET"], summary=summary, responses={200: {"model": answer}, **_FAILURES})

        get("/v2", self.show_server, "The server, and its extensions", descriptions.ServerMetadata)
        get("/v2/health/live", self.show_live, "Whether the process works", descriptions.ServerLive)
        get("/v2/health/ready", self.show_ready, "Whether the server is ready", descriptions.ServerReady)
        get("/v2/models/stats", self.show_statistics, "Statistics of all models", descriptions.ModelStatisticsList)
        tell: Tell
        for path, summary, tell, answer in (
            ("", "What a model takes and gives", self._management.model_metadata, descriptions.ModelMetadata),
            ("/ready", "Whether a model answers", self._tell_ready, descriptions.ModelReady),
            ("/config", "How a model is run", self._management.model_configuration, descriptions.ModelConfiguration),
            ("/stats", "Statistics of a model", self._tell_statistics, descriptions.ModelStatisticsList),
        ):
            get(f"/v2/models/{{name}}{path}", _of_model(tell), summary, answer)
            get(f"/v2/models/{{name}}/versions/{{version}}{path}", _of_version(tell), summary, answer)

        add("/v2/repository/index", self.show_index, methods=["POST"], summary="Every version of every model",
            responses={200: {"model": list[descriptions.ModelIndex]}, **_FAILURES},
            openapi_extra=_may_be_left_out(descriptions.RepositoryIndexRequest))  # fmt: skip
        for verb, handler, summary in (
            ("load", self.load, "Load a model, with a version that has appeared"),
            ("unload", self.unload, "Unload a model, when its requests have been answered"),
        ):
            add(f"/v2/repository/models/{{name}}/{verb}", handler, methods=["POST"], summary=summary,
                responses={200: {"model": descriptions.Done}, **_FAILURES},
                openapi_extra=_may_be_left_out(descriptions.RepositoryModelRequest))  # fmt: skip
        for extension in _NOT_HERE:
            for path in (f"/v2/{extension}", f"/v2/{extension}/{{rest:path}}"):
                add(path, _refuse, methods=["GET", "POST"], include_in_schema=False)
        return router

    async def show_server(self) -> Response:
        return json_answer(server_metadata())

    async def show_live(self) -> Response:
        return json_answer({"live": True})

    async def show_ready(self) -> Response:
        """503 before every start-up model is ready, and while draining."""
        error = self._management.why_not_ready()
        if error is not None:
            raise error
        return json_answer({"ready": True})

    async def show_statistics(self) -> Response:
        return json_answer(self._management.model_statistics())

    async def show_index(self, request: Request) -> Response:
        """With `ready`, only what answers."""
        ready = (await self._read(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidInput("ready", "wants true or false")
        return json_answer(self._management.repository_index(ready))

    async def load(self, name: str, request: Request) -> Response:
        """Returns when it is ready."""
        await self._management.load(name, await self._read_parameters(request))
        return json_answer({})

    async def unload(self, name: str, request: Request) -> Response:
        """Returns when it is done."""
        await self._read_parameters(request)
        await self._management.unload(name)
        return json_answer({})

    async def _tell_ready(self, name: str, version: str) -> dict[str, Any]:
        error = self._management.why_model_is_not_ready(name, version)
        if error is not None:
            raise error
        return {"name": name, "ready": True}

    async def _tell_statistics(self, name: str, version: str) -> dict[str, Any]:
        return self._management.model_statistics(name, version)

    async def _read_parameters(self, request: Request) -> dict[str, Any]:
        parameters = (await self._read(request)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidInput("parameters", "wants an object")
        return parameters

    async def _read(self, request: Request) -> dict[str, Any]:
        """The body, which may be left out; what it has that is not known is harmless."""
        check_media_type([header for header in request.scope["headers"] if not _is_binary(header)])
        try:
            return parse_object(await read_body(request.scope, request.receive, self._max_body_bytes))
        except EmptyBody:
            return {}


def _of_model(tell: Tell) -> Callable[[str], Awaitable[Response]]:
    async def of_model(name: str) -> Response:
        return json_answer(await tell(name, ""))

    return of_model


def _of_version(tell: Tell) -> Callable[[str, str], Awaitable[Response]]:
    async def of_version(name: str, version: str) -> Response:
        return json_answer(await tell(name, version))

    return of_version


async def _refuse(request: Request) -> Response:
    raise NotSupported(
        f"{request.url.path[:200]} is of an extension that is not here; there is {', '.join(EXTENSIONS)}"
    )


def _is_binary(header: Header) -> bool:
    """What asyncio's clients call a body that they were given as bytes; no web page sends it without asking first."""
    return header == (b"content-type", b"application/octet-stream")


def _may_be_left_out(question: type[BaseModel]) -> dict[str, Any]:
    schema = question.model_json_schema()
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": schema}}}}
