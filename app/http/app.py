"""The front: questions to models answered at once, everything else through FastAPI, which also describes them all."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from app import VERSION
from app.http.endpoint import Endpoint
from app.http.middleware import AdminMiddleware
from app.http.openapi import describe
from app.http.wire import error_body
from app.observability.metrics import Observer
from app.protocols.errors import STATUS_CLIENT_GONE, ClientGone, MethodNotAllowed, NotFound, extra_headers
from app.protocols.routes import RouteTable
from frameworks.errors import InvalidInput, RoundhouseError

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
_DESCRIPTION = "One server for ONNX and PyTorch models. Every answer carries x-request-id and Server-Timing."


class HttpApp:
    """The ASGI application."""

    def __init__(self, table: RouteTable, endpoint: Endpoint, admin: FastAPI, framed_admin: ASGIApp) -> None:
        self._find = table.find
        self._endpoint = endpoint
        self._admin = admin
        self._framed_admin = framed_admin

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._admin(scope, receive, send)
        address = self._find(scope["path"])
        if address is not None:
            return self._endpoint(scope, receive, send, address)
        return self._framed_admin(scope, receive, send)


def build_app(
    table: RouteTable, endpoint: Endpoint, routers: list[APIRouter], observer: Observer, lifespan: Lifespan
) -> HttpApp:
    """Puts the doors together. `routers` are FastAPI's; `lifespan` starts and stops what stands behind them."""
    # No pages of FastAPI's own: they load scripts from a CDN.
    admin = FastAPI(
        title="Roundhouse", description=_DESCRIPTION, version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    for router in routers:
        admin.include_router(router)
    for error in (RoundhouseError, HTTPException, RequestValidationError, ClientGone, Exception):
        admin.add_exception_handler(error, _answer_error)
    admin.state.routes = [route for router in routers for route in router.routes]
    admin.state.error_writer = table.error_writer
    admin.openapi = lambda: describe(admin, table.routes)  # type: ignore[method-assign]
    return HttpApp(table, endpoint, admin, AdminMiddleware(admin, observer, table.error_writer))


async def _answer_error(request: Request, error: Exception) -> Response:
    """What FastAPI's routes raise, and what its router has no route for, as the path's protocol words it."""
    if isinstance(error, ClientGone):
        request.scope["record"].code = "client_gone"
        return Response(status_code=STATUS_CLIENT_GONE)
    if isinstance(error, HTTPException):
        error = _in_our_words(request, error)
    elif isinstance(error, RequestValidationError):
        error = InvalidInput("request", "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors()))
    write = request.app.state.error_writer(request.scope["path"])
    status, body = error_body(error, request.scope["record"], write)
    headers = {name.decode(): value.decode() for name, value in extra_headers(error)}
    return Response(body, status, headers, media_type="application/json")


def _in_our_words(request: Request, error: HTTPException) -> Exception:
    path = request.url.path[:200]
    if error.status_code == 404:
        return NotFound(f"there is nothing at {path}; GET /docs lists every route")
    if error.status_code == 405:
        return MethodNotAllowed(request.method, path, ", ".join(_allowed_methods(request)))
    return error


def _allowed_methods(request: Request) -> list[str]:
    """Of every route with this path; the router itself names the methods of the first only."""
    routes = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in getattr(route, "methods", None) or ()})
