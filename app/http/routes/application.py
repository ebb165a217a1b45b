"""FastAPI's application: the routes that change or describe the server, and the document of all routes."""

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from app import server_version
from app.http.responses import error_body
from app.http.routes.openapi import build_document
from app.protocols.shared.errors import STATUS_CLIENT_GONE, ClientGone, MethodNotAllowed, NotFound, extra_headers
from app.protocols.shared.routes import RouteTable
from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.scheduling.byte_limit import ByteLimit

_DESCRIPTION = (
    "One server for ONNX and PyTorch models. Every response carries x-request-id and Server-Timing. "
    "[The page of the server](./) shows its models and requests. [The manual](./#/manual) is a part of it."
)


def build_admin(table: RouteTable, routers: list[APIRouter], byte_limit: ByteLimit) -> FastAPI:
    """Return the routes that change or describe the server. Requests have their RequestRecord as `scope["record"]`.

    `table`: inference routes, which are only described. `byte_limit`: counts the bodies.
    """
    # FastAPI's own documentation pages load scripts from a CDN, and its document does not know the prefix.
    admin = FastAPI(
        title="Roundhouse",
        description=_DESCRIPTION,
        version=server_version(),
        docs_url=None,
        openapi_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in routers:
        admin.include_router(router)
    for error in (RoundhouseError, HTTPException, RequestValidationError, ClientGone, Exception):
        admin.add_exception_handler(error, _error_response)
    admin.state.routes = [route for router in routers for route in router.routes]
    admin.state.error_codec = table.error_codec
    admin.state.byte_limit = byte_limit
    admin.openapi = lambda: build_document(admin, table)  # type: ignore[method-assign]
    return admin


async def _error_response(request: Request, error: Exception) -> Response:
    """Map an error of FastAPI's routes, or of its router, to the error body of the path's protocol."""
    if isinstance(error, ClientGone):
        request.scope["record"].code = "client_gone"
        return Response(status_code=STATUS_CLIENT_GONE)
    if isinstance(error, HTTPException):
        error = _as_own_error(request, error)
    elif isinstance(error, RequestValidationError):
        error = InvalidInput("request", "; ".join(f"{issue['loc'][-1]}: {issue['msg']}" for issue in error.errors()))
    codec = request.app.state.error_codec(request.scope["path"])
    status, body = error_body(error, request.scope["record"], codec)
    headers = {name.decode(): value.decode() for name, value in extra_headers(error)}
    return Response(body, status, headers, media_type="application/json")


def _as_own_error(request: Request, error: HTTPException) -> Exception:
    path = request.url.path[:200]
    if error.status_code == 404:
        return NotFound(f"there is nothing at {path}; GET /docs lists every route")
    if error.status_code == 405:
        return MethodNotAllowed(request.method, path, ", ".join(_allowed_methods(request)))
    return error


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes with this path; the router itself names those of the first one only."""
    routes = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in routes for method in getattr(route, "methods", None) or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)
