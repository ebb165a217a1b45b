"""The OpenAPI document: FastAPI's own, with the routes that are answered in front of it added."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.protocols.routes import Route

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


def describe(admin: FastAPI, routes: Sequence[Route]) -> dict[str, Any]:
    """The document, made when it is asked for first."""
    if admin.openapi_schema is None:
        document = get_openapi(
            title=admin.title, version=admin.version, description=admin.description, routes=admin.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for route in routes:
            for model in (route.text.question, route.text.answer, route.text.error):
                if model.__name__ not in schemas:
                    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                    schemas.update(schema.pop("$defs", {}))
                    schemas[model.__name__] = schema
        document["paths"] = {route.path: {"post": _operation(route)} for route in routes} | document["paths"]
        admin.openapi_schema = document
    return admin.openapi_schema


def _operation(route: Route) -> dict[str, Any]:
    text = route.text
    questions, answers = _json_of(text.question), _json_of(text.answer)
    if text.streams:
        answers["text/event-stream"] = {"schema": {"type": "string"}}
    if text.in_bytes:
        for content in (questions, answers):
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    operation: dict[str, Any] = {
        "tags": [text.tag],
        "summary": text.summary,
        "operationId": "_".join([text.tag, *(part.strip("{}") for part in route.path.strip("/").split("/"))]),
        "requestBody": {"required": True, "content": questions},
        "responses": {
            "200": {"description": "The answer mirrors the question.", "content": answers},
            **{
                status: {"description": meaning, "content": _json_of(text.error)}
                for status, meaning in _FAILURES.items()
            },
        },
    }
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    return operation


def _json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
