"""Build the OpenAPI document: FastAPI's routes, and the inference routes that are served in front of FastAPI."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.auth.permissions import EXEMPT, Access
from app.protocols.shared.errors import ERROR_CODES
from app.protocols.shared.fields.images import MEDIA_TYPES
from app.protocols.shared.routes import Route, RouteTable
from frameworks.media.kinds import MEDIA_TYPES as FILE_MEDIA_TYPES

# Codes that only the routes of the models, or no route at all, answer with.
_NOT_OF_INFERENCE = {
    "adapter_exists",
    "collection_exists",
    "collection_not_found",
    "model_exists",
    "not_found",
    "not_supported",
    "record_not_found",
}

_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key. A server without keys needs none."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
}

EVENT_STREAM: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": "Each server-sent event.",
            "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
            "required": ["data"],
        }
    }
}
"""The content of a response that is a stream of events."""

_LINES: dict[str, Any] = {
    "application/x-ndjson": {"schema": {"type": "string", "description": "Lines, each a JSON object."}}
}

Responses = dict[int | str, dict[str, Any]]
"""`responses` of a FastAPI route: descriptions by status."""


class _Description(dict[str, Any]):
    """A description that keeps the model apart: FastAPI would build a validator of it for each route at every start."""

    def __init__(self, model: type[BaseModel], is_list: bool = False) -> None:
        """`is_list`: the body is a list of `model`."""
        super().__init__(content=_json_content(model, is_list))
        self.model = model


def describe_responses(
    model: type[BaseModel], error: type[BaseModel] | None = None, status: int = 200, is_list: bool = False
) -> Responses:
    """Describe the success of a route and, if `error` is given, its failures. `is_list`: a list of `model`."""
    failures: Responses = {} if error is None else {"4XX": _Description(error), "5XX": _Description(error)}
    return {status: _Description(model, is_list), **failures}


def add_route(
    router: APIRouter,
    method: str,
    path: str,
    handler: Callable[..., Any],
    summary: str,
    response: type[BaseModel],
    error: type[BaseModel] | None = None,
    **others: Any,
) -> None:
    """Add a route that answers with JSON. `others`: `status` and `is_list` of `describe_responses`, and `extra`, the
    `openapi_extra` of FastAPI.
    """
    extra, status = others.pop("extra", None), others.get("status", 200)
    responses = describe_responses(response, error, **others)
    router.add_api_route(
        path, handler, methods=[method], status_code=status, summary=summary, responses=responses, openapi_extra=extra
    )


def build_document(admin: FastAPI, table: RouteTable) -> dict[str, Any]:
    """Return the document. It is built at the first call and kept in the application."""
    if admin.openapi_schema is None:
        document = get_openapi(
            title=admin.title, version=admin.version, description=admin.description, routes=admin.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for route in table.routes:
            for model in (route.description.request, route.description.response, route.description.error):
                _add_schema(schemas, model)
            if route.description.form is not None:
                _add_schema(schemas, route.description.form)
        for described in (each for route in admin.state.routes for each in route.responses.values()):
            if isinstance(described, _Description):
                _add_schema(schemas, described.model)
        described_paths = document["paths"]
        by_path: dict[str, list[Route]] = {}
        for route in table.routes:
            by_path.setdefault(route.path, []).append(route)
        document["paths"] = {
            path: described_paths.pop(path, {}) | {"post": _operation(*shared)} for path, shared in by_path.items()
        } | described_paths
        document["components"]["securitySchemes"] = _KEYS
        document["security"] = [{"bearer": []}, {"x-api-key": []}, {}]
        _mark_open_operations(document["paths"], table.access.table)
        admin.openapi_schema = document
    return admin.openapi_schema


def _mark_open_operations(paths: dict[str, Any], permissions: Mapping[str, Mapping[str, Access]]) -> None:
    """Say which operations need no key."""
    for path in paths.keys() & permissions.keys():
        for method in (method for method, access in permissions[path].items() if access is EXEMPT):
            paths[path][method.lower()]["security"] = []


def _add_schema(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    if model.__name__ not in schemas:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema


def _operation(route: Route, *shared: Route) -> dict[str, Any]:
    """Describe a route. `shared`: others of the same path, told apart by their bodies."""
    described, others = route.description, [each.description for each in shared]
    requests = _one_of(described.request, [each.request for each in others])
    binary = {"schema": {"type": "string", "format": "binary"}}
    responses = _one_of(described.response, [each.response for each in others])
    files = dict.fromkeys(described.files, binary)
    responses = files if described.is_file else responses | files
    if described.streams or any(each.streams for each in others):
        responses |= _LINES if route.codec.streams_lines else EVENT_STREAM
    if described.in_bytes:
        for content in (requests, responses):
            content["application/octet-stream"] = binary
    if described.is_form:
        requests = {"multipart/form-data": requests["application/json"]}
    responses |= {text: {"schema": {"type": "string"}} for text in described.texts}
    if described.form is not None:
        requests |= {"multipart/form-data": _json_content(described.form)["application/json"]}
        types = (*MEDIA_TYPES, *FILE_MEDIA_TYPES["audio"], *FILE_MEDIA_TYPES["video"], "application/octet-stream")
        requests |= dict.fromkeys(types, binary)
    operation: dict[str, Any] = {
        "tags": [described.tag],
        "summary": described.summary,
        "operationId": "_".join([described.tag, *re.findall(r"\w+", route.path)]),
        "requestBody": {"required": True, "content": requests},
        "responses": {
            "200": {"description": "The result.", "content": responses},
            **_errors([described.error, *(each.error for each in others)], described.codes),
        },
    }
    names = re.findall(r"\{(\w+)\}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if described.query is not None:
        parameters += _query_of(described.query, names)
    if parameters:
        operation["parameters"] = parameters
    return operation


def _query_of(options: type[BaseModel], names: list[str]) -> list[dict[str, Any]]:
    """Return the options of a body that is one file. `names`: those in the path."""
    known = {"model_name": "name", "version": "version"}
    return [
        {"name": field, "in": "query", "description": "For a body that is one file.", "schema": schema}
        for field, schema in options.model_json_schema()["properties"].items()
        if known.get(field) not in names
    ]


def _errors(bodies: list[type[BaseModel]], codes: frozenset[str]) -> dict[str, Any]:
    """Return the error responses of an inference route by status, described by their codes.

    `bodies`: of the requests that share the path. `codes`: of these routes, beside those of every inference route.
    """
    others = _NOT_OF_INFERENCE - codes
    by_status = {
        status: [code for code in codes if code not in others] for status, codes in sorted(ERROR_CODES.items())
    }
    return {
        str(status): {"description": ", ".join(codes), "content": _one_of(bodies[0], bodies[1:])}
        for status, codes in by_status.items()
        if codes
    }


def _one_of(model: type[BaseModel], others: list[type[BaseModel]]) -> dict[str, Any]:
    content = _json_content(model)
    models = dict.fromkeys((model, *others))
    if len(models) > 1:
        schemas = [_json_content(each)["application/json"]["schema"] for each in models]
        content["application/json"]["schema"] = {"anyOf": schemas}
    return content


def _json_content(model: type[BaseModel], is_list: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"application/json": {"schema": {"type": "array", "items": schema} if is_list else schema}}
