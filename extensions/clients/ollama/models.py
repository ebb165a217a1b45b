"""Routes of Ollama's API that list and describe models: /api/tags, /api/ps, /api/show and /api/version."""

from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from app.admin.bodies import describe_body, read_object
from app.admin.openai_models import capabilities_of, find_named, known_spec
from app.admin.views import Views
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.inference.context import ADAPTER_MARK
from app.protocols.shared.bodies import Body, ResponseBody, read_body
from extensions.clients.ollama.codec import without_tag
from extensions.clients.ollama.routes import OllamaErrorResponse
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState

OLLAMA_VERSION = "0.12.6"
"""Of Ollama: the routes here are those of its API. Clients refuse a server whose version lacks what they need."""
_CAPABILITIES = ("completion", "tools", "thinking", "insert", "embedding")
"""Those of Ollama that its routes here serve."""


class OllamaModel(ResponseBody):
    """One model, or an alias or an adapter of it."""

    name: str
    model: str
    modified_at: str = Field(description="Time of the server's start.")
    size: int = Field(description="Bytes of memory; 0 while not loaded.")
    digest: str = Field(description="SHA-256 of the name and the version, not of the files.")
    details: dict[str, Any]


class OllamaModelList(ResponseBody):
    """Models, with their aliases and adapters."""

    models: list[OllamaModel]


class OllamaVersion(ResponseBody):
    """The version of Ollama whose API the routes follow."""

    version: str


class OllamaShown(ResponseBody):
    """One model."""

    modified_at: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str] = Field(
        description="completion, tools, thinking, insert, embedding; empty before its first load."
    )


class OllamaShowRequest(Body):
    """The name of a model."""

    model: str | None = Field(None, min_length=1)
    name: str | None = Field(None, min_length=1, description="Older name of model.")
    verbose: Any = Field(None, description="Accepted without effect.")


class OllamaApi:
    """Handlers of the routes."""

    def __init__(self, views: Views, max_body_bytes: int) -> None:
        self._views = views
        self._max_body_bytes = max_body_bytes
        self._started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ollama"])
        add = partial(add_route, router)
        add("GET", "/api/tags", self.list_ollama_models, "List models", OllamaModelList)
        add("GET", "/api/ps", self.list_loaded_models, "List loaded models", OllamaModelList)
        add("GET", "/api/version", self.show_version, "Show the version", OllamaVersion)
        add("POST", "/api/show", self.show_ollama_model, "Show a model", OllamaShown, OllamaErrorResponse,
            extra=describe_body(OllamaShowRequest.model_json_schema()))  # fmt: skip
        return router

    async def list_ollama_models(self, request: Request) -> Response:
        """List the models that these routes serve and the key may use, their aliases and their adapters."""
        slots = filter(_is_served, self._views.for_request(request).models.slots)
        return json_response({"models": [self._describe(slot, name) for slot in slots for name in _names(slot)]})

    async def list_loaded_models(self, request: Request) -> Response:
        """List the models of /api/tags that are ready."""
        slots = filter(_is_served, self._views.for_request(request).models.slots)
        ready = [self._loaded(slot) for slot in slots if slot.state is ModelState.READY]
        return json_response({"models": ready})

    async def show_version(self) -> Response:
        """Show the version of Ollama whose API these routes follow."""
        return json_response({"version": OLLAMA_VERSION})

    async def show_ollama_model(self, request: Request) -> Response:
        """Show one model, an alias, or an adapter as `model:adapter`."""
        body = read_body(OllamaShowRequest, await read_object(request, self._max_body_bytes))
        name = str(without_tag(body.model or body.name or ""))
        slot, _, adapter = find_named(self._views.for_request(request).models, name)
        info: dict[str, Any] = {"general.architecture": slot.framework}
        if slot.spec is not None and slot.spec.max_tokens is not None:
            info[f"{slot.framework}.context_length"] = slot.spec.max_tokens
        return json_response(
            {
                "modified_at": self._started,
                "details": _details(slot) | ({"parent_model": slot.name} if adapter else {}),
                "model_info": info,
                "capabilities": _capabilities(slot),
            }
        )

    def _describe(self, slot: ModelSlot, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "model": name,
            "modified_at": self._started,
            "size": slot.memory_bytes,
            "digest": sha256(f"{name}@{slot.version}".encode()).hexdigest(),
            "details": _details(slot),
        }

    def _loaded(self, slot: ModelSlot) -> dict[str, Any]:
        is_on_cpu = slot.spec is None or slot.spec.device.startswith("cpu")
        return {**self._describe(slot, slot.name), "size_vram": 0 if is_on_cpu else slot.memory_bytes}


def _names(slot: ModelSlot) -> list[str]:
    return [*slot.names, *(f"{slot.name}{ADAPTER_MARK}{each.name}" for each in slot.adapters)]


def _details(slot: ModelSlot) -> dict[str, Any]:
    spec = slot.spec
    return {
        "parent_model": "",
        "format": slot.framework,
        "family": slot.framework,
        "families": [slot.framework],
        "parameter_size": "",
        "quantization_level": "" if spec is None else spec.dtype,
    }


def _capabilities(slot: ModelSlot) -> list[str]:
    spec = known_spec(slot)
    if spec is None:
        return []
    # The routes take images in chats and prompts alone.
    served = (*_CAPABILITIES, "vision") if spec.generation is not None else _CAPABILITIES
    return [name for name in capabilities_of(spec) if name in served]


def _is_served(slot: ModelSlot) -> bool:
    """Whether the routes serve the model: one that generates or embeds, or that was not loaded yet."""
    return slot.spec is None or bool(_capabilities(slot))
