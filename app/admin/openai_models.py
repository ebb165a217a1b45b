"""Route /v1/models: list the registered models in the format of the OpenAI API."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from app.admin.views import Views
from app.http.routes.model_paths import NAME
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.inference.context import ADAPTER_MARK
from app.inference.model_view import ModelView
from app.inference.unnamed_model import kind_of, last_spec_of
from app.protocols.openai.responses import OpenAiErrorResponse
from app.protocols.shared.bodies import ResponseBody, got
from frameworks.core.errors import AdapterNotFound, InvalidInput, RoundhouseError
from frameworks.models.versions.slot import ModelSlot
from frameworks.tasks.speaking import TASK_NAME
from frameworks.tasks.table import TASKS
from frameworks.types import ModelSpec, Task

_TASKS: tuple[Task, ...] = ("tensor", "embed", "classify", "generate", *TASKS)
_TaskFilter = Annotated[
    str | None, Query(description="Only models of this task.", json_schema_extra={"enum": list(_TASKS)})
]


class OpenAiModel(ResponseBody):
    """One registered model, or an alias or an adapter of it."""

    id: str
    object: str = "model"
    created: int = Field(description="Unix time of the server's start in seconds.")
    owned_by: str = "roundhouse"
    task: Task | None = Field(description="As in /models; null before the first load of the model.")
    capabilities: list[str] = Field(
        description="Some of completion, chat, tools, thinking, insert, embedding, rerank, classification, vision, "
        "speech, tensor. Empty before the first load of the model."
    )
    ready: bool = Field(description="Whether the model is loaded, as KServe reports it.")
    root: str | None = Field(
        None, description="Of an alias or an adapter: the name of the model; absent for a model under its own name."
    )
    parent: str | None = Field(None, description="Of an adapter: the name of its base.")
    max_model_len: int | None = Field(
        None, description="Maximum tokens of a text, or of prompt and generated text together; absent while not loaded."
    )


class OpenAiModelList(ResponseBody):
    """All registered models, their aliases and their adapters, loaded or not."""

    object: str = "list"
    data: list[OpenAiModel]


def capabilities_of(spec: ModelSpec) -> list[str]:
    """Return what a model can do, by the names of Ollama where it has them."""
    generation = spec.generation
    if generation is not None:
        found = {
            "completion": True,
            "chat": generation.has_chat_template,
            "tools": generation.text_format.tools is not None,
            "thinking": generation.text_format.thinks,
            "insert": generation.can_infill,
            "vision": generation.vision is not None,
        }
        return [name for name, is_found in found.items() if is_found]
    if spec.task == TASK_NAME:
        return ["speech"]
    names = {"embed": "embedding", "rerank": "rerank", "classify": "classification"}
    of_task = names.get(kind_of(spec) or spec.task, "tensor")
    return [of_task, "vision"] if spec.image is not None else [of_task]


def known_spec(slot: ModelSlot) -> ModelSpec | None:
    """Return the spec of the last load of a model; None if it was never loaded, failed, or was unloaded."""
    try:
        return last_spec_of(slot)
    except RoundhouseError:
        return None


def find_named(models: ModelView, name: str) -> tuple[ModelSlot, str, str]:
    """Return the model of a name that may be `model:adapter`, and the two parts; "" without an adapter.

    Raises ModelNotFound, AdapterNotFound.
    """
    base, mark, adapter = name.partition(ADAPTER_MARK)
    slot = models.slot(base)
    known = [each.name for each in slot.adapters]
    if mark and adapter not in known:
        raise AdapterNotFound(base, adapter, known)
    return slot, base, adapter


def _task_of(spec: ModelSpec | None) -> Task | None:
    return None if spec is None else spec.task


class OpenAiModelsApi:
    """Handlers of the routes."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._created_s = int(time.time())

    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"])
        add_route(router, "GET", "/v1/models", self.list_openai_models, "List models", OpenAiModelList)
        path = f"/v1/models/{NAME}"
        add_route(router, "GET", path, self.show_openai_model, "Show a model", OpenAiModel, OpenAiErrorResponse)
        return router

    async def list_openai_models(self, request: Request, task: _TaskFilter = None) -> Response:
        """List the models that the key may use, in the format of the OpenAI API. `task`: only those of this task."""
        if task is not None and task not in _TASKS:
            raise InvalidInput(
                "task", f"expected one of {', '.join(_TASKS)}, got {got(task)}; or omit it for all models"
            )
        slots = self._views.for_request(request).models.slots
        if task is not None:
            slots = [slot for slot in slots if _task_of(known_spec(slot)) == task]
        return json_response({"object": "list", "data": [each for slot in slots for each in self._describe_all(slot)]})

    async def show_openai_model(self, name: str, request: Request) -> Response:
        """Show one model, an alias, or an adapter as `model:adapter`, in the format of the OpenAI API."""
        return json_response(self._describe(*find_named(self._views.for_request(request).models, name)))

    def _describe_all(self, slot: ModelSlot) -> list[dict[str, Any]]:
        """Describe the model, its aliases and its adapters."""
        adapters = [self._describe(slot, slot.name, each.name) for each in slot.adapters]
        return [*(self._describe(slot, name) for name in slot.names), *adapters]

    def _describe(self, slot: ModelSlot, name: str, adapter: str = "") -> dict[str, Any]:
        """`name`: that of the model, or an alias."""
        shown = f"{name}{ADAPTER_MARK}{adapter}" if adapter else name
        spec = known_spec(slot)
        model = {
            "id": shown,
            "object": "model",
            "created": self._created_s,
            "owned_by": "roundhouse",
            "task": _task_of(spec),
            "capabilities": [] if spec is None else capabilities_of(spec),
            "ready": slot.spec is not None,
        }
        if shown != slot.name:
            model["root"] = slot.name
        if adapter:
            model["parent"] = slot.name
        max_tokens = slot.spec.max_tokens if slot.spec is not None else None
        return model if max_tokens is None else {**model, "max_model_len": max_tokens}
