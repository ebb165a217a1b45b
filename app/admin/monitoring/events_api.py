"""Serve GET /events, the stream of the page, and GET /requests."""

import re
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.admin.monitoring.event_encoding import describe_request
from app.admin.monitoring.event_subscribers import Viewers
from app.admin.monitoring.request_log import RequestLog
from app.admin.monitoring.visibility import shows_request
from app.auth.principal import Principal
from app.http.routes.openapi import EVENT_STREAM, add_route
from app.http.routes.responses import AsgiResponse, json_response
from app.observability.recent_requests import KEPT_REQUESTS, FinishedRequest, unix_offset_s
from app.protocols.native.fields import ErrorResponse
from app.protocols.shared.bodies import ResponseBody
from frameworks.core.errors import InvalidInput

_STATUS = re.compile(r"[1-5](xx|[0-9]{2})", re.ASCII)
_LIMIT = re.compile(r"[0-9]{1,3}", re.ASCII)
_QUERY = ("id", "limit", "model", "status")


class RequestDescription(ResponseBody):
    """A finished inference request. Phases that a request did not reach took 0 ms."""

    key: str = Field(description="Unique among the requests of the server.")
    id: str = Field(description="The x-request-id.")
    ended_s: float = Field(description="Unix time in seconds.")
    tenant: str
    method: str = Field(description="POST, or gRPC.")
    path: str = Field(description="Path, or name of the method; cut after 256 characters.")
    model: str | None
    version: str | None
    adapter: str | None
    status: int = Field(description="HTTP status; 499 for a client that went away.")
    code: str | None = Field(description="Code of the error; with status 200 that of a stream that failed.")
    error: str | None
    decode_ms: float
    queue_ms: float
    compute_ms: float
    encode_ms: float
    total_ms: float
    batch_rows: int | None = Field(description="Rows of the largest batch in which it ran.")
    cache_hit: bool | None = Field(description="Null for a model without cache.")
    request_bytes: int
    response_bytes: int


class RequestList(ResponseBody):
    """The latest requests, newest first."""

    requests: list[RequestDescription]


class EventsApi:
    """Handlers of the routes."""

    def __init__(self, viewers: Viewers, requests: RequestLog) -> None:
        self._viewers = viewers
        self._requests = requests

    def router(self) -> APIRouter:
        router = APIRouter(tags=["server"])
        summary = "Stream the state of the server"
        router.add_api_route(
            "/events", self.events, methods=["GET"], response_class=Response, summary=summary,
            responses={200: {"content": EVENT_STREAM, "description": "Events in JSON."}},
        )  # fmt: skip
        parameters, summary = [_parameter(*each) for each in _PARAMETERS], "List the latest requests"
        add_route(router, "GET", "/requests", self.list_requests, summary, RequestList, ErrorResponse,
                  extra={"parameters": parameters})  # fmt: skip
        return router

    async def events(self) -> Response:
        """Stream the models, the figures of the last 15 minutes, a sample every two seconds and finished requests.

        Server-sent events. The key sees what it sees in `GET /models`, `/metrics` and `/requests`.
        """
        return AsgiResponse(self._viewers.stream)

    async def list_requests(self, request: Request) -> Response:
        """List the last 200 inference requests of the key's tenant, or for an operator of all tenants. Never bodies."""
        principal: Principal = request.scope["record"].principal
        shows, limit = read_filter(request.query_params.multi_items())
        latest = await self._requests.latest(principal.counts_of, request.query_params.get("id"))
        found = [each for each in latest if shows_request(principal, each) and shows(each)][:limit]
        offset_s = unix_offset_s()
        return json_response({"requests": [describe_request(each, principal, offset_s) for each in found]})


_PARAMETERS = (
    ("id", "Only requests with this x-request-id.", {"type": "string"}),
    ("model", "Only requests to this model.", {"type": "string"}),
    ("status", "Only this status, or a class like `5xx`.", {"type": "string", "pattern": "^[1-5](xx|[0-9]{2})$"}),
    ("limit", "Maximum number of requests.", {"type": "integer", "minimum": 1, "maximum": KEPT_REQUESTS}),
)  # fmt: skip


def _parameter(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def read_filter(query: list[tuple[str, str]]) -> tuple[Callable[[FinishedRequest], bool], int]:
    """Return which requests are listed, and the maximum number of them. Raises InvalidInput."""
    given = dict(query)
    unknown = sorted(given.keys() - set(_QUERY))
    if unknown or len(given) < len(query):
        name = unknown[0][:64] if unknown else "query"
        raise InvalidInput(name, f"expected {', '.join(_QUERY)}, each once; remove others from the query")
    model, status, limit = given.get("model"), given.get("status"), given.get("limit", str(KEPT_REQUESTS))
    if status is not None and not _STATUS.fullmatch(status):
        raise InvalidInput("status", f'expected a status like 503, or a class like 5xx, got "{status[:64]}"')
    if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= KEPT_REQUESTS:
        raise InvalidInput("limit", f'expected an integer from 1 to {KEPT_REQUESTS}, got "{limit[:64]}"')
    prefix = (status or "").removesuffix("xx")

    def shows(request: FinishedRequest) -> bool:
        return model in (None, request.model) and str(request.status).startswith(prefix)

    return shows, int(limit)
