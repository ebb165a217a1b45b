"""The front: `/infer` and its kin answered at once, everything else through FastAPI, which also describes them all."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import STATUS_CLIENT_GONE, ClientGone, MethodNotAllowed, NotFound, extra_headers
from app.api.frame import Frame
from app.api.native.fields import ErrorResponse, InferRequest, InferResponse
from app.api.native.infer import ROUTES, InferEndpoint, target_of
from app.api.wire import error_body
from app.observe import Observer
from frameworks.errors import InvalidInput, RoundhouseError

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
_DESCRIPTION = "One server for ONNX and PyTorch models. Every answer carries x-request-id and Server-Timing."


class Front:
    """The ASGI application."""

    def __init__(self, infer: InferEndpoint, admin: FastAPI, framed_admin: ASGIApp) -> None:
        self._infer = infer
        self._admin = admin
        self._framed_admin = framed_admin

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._admin(scope, receive, send)
        target = target_of(scope["path"])
        if target is not None:
            return self._infer(scope, receive, send, target)
        return self._framed_admin(scope, receive, send)


def build_front(infer: InferEndpoint, routers: list[APIRouter], observer: Observer, lifespan: Lifespan) -> Front:
    """Puts the doors together. `routers` are FastAPI's; `lifespan` starts and stops what stands behind them."""
    admin = FastAPI(title="Roundhouse", description=_DESCRIPTION, version="0.1.0", lifespan=lifespan, redoc_url=None)
    for router in routers:
        admin.include_router(router)
    for error in (RoundhouseError, HTTPException, RequestValidationError, ClientGone, Exception):
        admin.add_exception_handler(error, _answer_error)
    admin.state.routes = [route for router in routers for route in router.routes]
    admin.openapi = lambda: _describe(admin)  # type: ignore[method-assign]
    return Front(infer, admin, Frame(admin, observer))


async def _answer_error(request: Request, error: Exception) -> Response:
    """What FastAPI's routes raise, and what its router has no route for, in the contract's form."""
    if isinstance(error, ClientGone):
        request.scope["record"].code = "client_gone"
        return Response(status_code=STATUS_CLIENT_GONE)
    if isinstance(error, HTTPException):
        error = _in_our_words(request, error)
    elif isinstance(error, RequestValidationError):
        error = InvalidInput("request", "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors()))
    status, body = error_body(error, request.scope["record"])
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


def _describe(admin: FastAPI) -> dict[str, Any]:
    """FastAPI's own OpenAPI document, with the routes that are answered in front of it added."""
    if admin.openapi_schema is None:
        document = get_openapi(
            title=admin.title, version=admin.version, description=admin.description, routes=admin.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in (InferRequest, InferResponse, ErrorResponse):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        document["paths"] = {path: {"post": _infer_operation(path)} for path in ROUTES} | document["paths"]
        admin.openapi_schema = document
    return admin.openapi_schema


def _infer_operation(path: str) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    operation: dict[str, Any] = {
        "tags": ["infer"],
        "summary": "Run a model on tensors or text",
        "operationId": "infer" + "".join(f"_{part.strip('{}')}" for part in path.strip("/").split("/")),
        "requestBody": {"required": True, "content": _json_of("InferRequest")},
        "responses": {
            "200": {"description": "The answer mirrors the question.", "content": _json_of("InferResponse")},
            **{
                status: {"description": meaning, "content": _json_of("ErrorResponse")}
                for status, meaning in _FAILURES.items()
            },
        },
    }
    if names:
        operation["parameters"] = [
            {"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names
        ]
    return operation


def _json_of(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


_FAILURES = {
    "400": "invalid_json, invalid_input, unknown_field",
    "404": "model_not_found, version_not_found",
    "405": "method_not_allowed",
    "413": "too_large",
    "415": "unsupported_media_type",
    "500": "internal",
    "503": "overloaded, loading, unloaded, draining, model_failed",
    "504": "deadline_exceeded",
    "507": "out_of_memory",
}
