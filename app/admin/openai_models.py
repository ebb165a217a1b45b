"""Route /v1/models: list the registered models in the format of the OpenAI API."""

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from app.admin.views import Views
from app.http.model_paths import NAME
from app.http.openapi import describe_responses
from app.http.responses import json_response
from app.inference.context import ADAPTER_MARK
from app.protocols.bodies import ResponseBody
from app.protocols.openai.responses import OpenAiErrorResponse
from frameworks.errors import AdapterNotFound
from frameworks.models.slot import ModelSlot


class OpenAiModel(ResponseBody):
    """One registered model, or an alias or an adapter of it."""

    id: str
    object: str = "model"
    created: int = Field(description="Unix time of the server's start in seconds.")
    owned_by: str = "roundhouse"
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


class OpenAiModelsApi:
    """Handlers of the routes."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._created_s = int(time.time())

    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"])
        router.add_api_route(
            "/v1/models", self.list_openai_models, methods=["GET"], summary="List models",
            responses=describe_responses(OpenAiModelList),
        )  # fmt: skip
        router.add_api_route(
            f"/v1/models/{NAME}", self.show_openai_model, methods=["GET"], summary="Show a model",
            responses=describe_responses(OpenAiModel, OpenAiErrorResponse),
        )  # fmt: skip
        return router

    async def list_openai_models(self, request: Request) -> Response:
        """List the models that the key may use, in the format of the OpenAI API."""
        slots = self._views.for_request(request).models.slots
        return json_response({"object": "list", "data": [each for slot in slots for each in self._describe_all(slot)]})

    async def show_openai_model(self, name: str, request: Request) -> Response:
        """Show one model, an alias, or an adapter as `model:adapter`, in the format of the OpenAI API."""
        base, mark, adapter = name.partition(ADAPTER_MARK)
        slot = self._views.for_request(request).models.slot(base)
        known = [each.name for each in slot.adapters]
        if mark and adapter not in known:
            raise AdapterNotFound(base, adapter, known)
        return json_response(self._describe(slot, base, adapter))

    def _describe_all(self, slot: ModelSlot) -> list[dict[str, Any]]:
        """Describe the model, its aliases and its adapters."""
        adapters = [self._describe(slot, slot.name, each.name) for each in slot.adapters]
        return [*(self._describe(slot, name) for name in slot.names), *adapters]

    def _describe(self, slot: ModelSlot, name: str, adapter: str = "") -> dict[str, Any]:
        """`name`: that of the model, or an alias."""
        shown = f"{name}{ADAPTER_MARK}{adapter}" if adapter else name
        model = {"id": shown, "object": "model", "created": self._created_s, "owned_by": "roundhouse"}
        if shown != slot.name:
            model["root"] = slot.name
        if adapter:
            model["parent"] = slot.name
        max_tokens = slot.spec.max_tokens if slot.spec is not None else None
        return model if max_tokens is None else {**model, "max_model_len": max_tokens}
