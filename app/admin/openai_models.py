"""Route /v1/models: list the registered models in the format of the OpenAI API."""

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from app.admin.views import Views
from app.http.openapi import describe_responses
from app.http.responses import json_response
from app.protocols.bodies import ResponseBody
from app.protocols.openai.responses import OpenAiErrorResponse
from frameworks.models.slot import ModelSlot


class OpenAiModel(ResponseBody):
    """One registered model."""

    id: str
    object: str = "model"
    created: int = Field(description="Unix time of the server's start in seconds.")
    owned_by: str = "roundhouse"
    max_model_len: int | None = Field(
        None, description="Maximum tokens of a text, or of prompt and generated text together; absent while not loaded."
    )


class OpenAiModelList(ResponseBody):
    """All registered models, loaded or not."""

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
            "/v1/models/{name}", self.show_openai_model, methods=["GET"], summary="Show a model",
            responses=describe_responses(OpenAiModel, OpenAiErrorResponse),
        )  # fmt: skip
        return router

    async def list_openai_models(self, request: Request) -> Response:
        """List the models that the key may use, in the format of the OpenAI API."""
        slots = self._views.for_request(request).models.slots
        return json_response({"object": "list", "data": [self._describe(slot) for slot in slots]})

    async def show_openai_model(self, name: str, request: Request) -> Response:
        """Show one model in the format of the OpenAI API."""
        return json_response(self._describe(self._views.for_request(request).models.slot(name)))

    def _describe(self, slot: ModelSlot) -> dict[str, Any]:
        model = {"id": slot.name, "object": "model", "created": self._created_s, "owned_by": "roundhouse"}
        max_tokens = slot.spec.max_tokens if slot.spec is not None else None
        return model if max_tokens is None else {**model, "max_model_len": max_tokens}
