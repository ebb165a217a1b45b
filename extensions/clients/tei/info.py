"""Route /info: describe a model as Text Embeddings Inference and Text Generation Inference do."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, RootModel
from starlette.responses import Response

from app import server_version
from app.admin.views import Views
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.inference.unnamed_model import UnnamedModel, kind_of
from app.protocols.native.fields import ErrorResponse
from app.protocols.shared.bodies import MAX_INT32, ResponseBody
from app.protocols.shared.fields.generation import MAX_STOPS
from app.protocols.shared.fields.texts import MAX_TEXTS
from frameworks.core.errors import InvalidInput
from frameworks.engine.threads import LONG_THREADS
from frameworks.generation.types import GenerationSpec
from frameworks.models.versions.slot import ModelSlot
from frameworks.types import ModelSpec

_MODEL = UnnamedModel(("embed", "rerank", "classify", "generate"))
# TEI's names where they differ from ours. BERT's own pooler reads the first token.
_POOLINGS = {"pooler": "cls", "lasttoken": "last_token"}


class TeiInfo(ResponseBody):
    """One text model."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, dict[str, Any]]
    max_concurrent_requests: int = Field(description="2147483647: no limit.")
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None


class TgiInfo(ResponseBody):
    """One model that generates text."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_device_type: str
    model_pipeline_tag: str
    max_concurrent_requests: int = Field(description="2147483647: no limit.")
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int = Field(description="Of prompt and text together.")
    max_client_batch_size: int
    validation_workers: int
    router: str
    version: str
    sha: str | None
    docker_label: str | None


class InfoResponse(RootModel[TeiInfo | TgiInfo]):
    """The model, by its task."""


class TeiApi:
    """Handler of the route."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def router(self) -> APIRouter:
        router = APIRouter(tags=["tei"])
        add_route(router, "GET", "/info", self.info, "Describe a text model", InfoResponse, ErrorResponse)
        return router

    async def info(self, request: Request, model: str | None = None) -> Response:
        """Describe a text model as its task's server does. `model`: its name; default: the only one."""
        models = self._views.for_request(request).models
        slot = models.slot(model if model is not None else _MODEL.name_in(models.slots))
        spec = slot.spec
        if spec is not None and spec.generation is not None:
            return json_response(_describe_generating(slot, spec, spec.generation))
        if spec is None or spec.text is None:
            raise InvalidInput(
                "model", f'expected a loaded text model, got "{slot.name}"; GET /models lists the models'
            )
        return json_response(_describe(slot, spec))


def _describe(slot: ModelSlot, spec: ModelSpec) -> dict[str, Any]:
    limits, entry = slot.limits, slot.entry
    return {
        "model_id": slot.name,
        "model_sha": None,
        "model_dtype": spec.dtype,
        "model_type": _type_of(spec),
        "max_concurrent_requests": entry.max_concurrent_requests or MAX_INT32,
        "max_input_length": spec.max_tokens,
        "max_batch_tokens": limits.max_tokens or limits.max_rows * (spec.max_tokens or 1),
        "max_batch_requests": limits.max_rows,
        "max_client_batch_size": MAX_TEXTS,
        "auto_truncate": True,
        "tokenization_workers": LONG_THREADS,
        "version": server_version(),
        "sha": None,
        "docker_label": None,
    }


def _describe_generating(slot: ModelSlot, spec: ModelSpec, generation: GenerationSpec) -> dict[str, Any]:
    return {
        "model_id": slot.name,
        "model_sha": None,
        "model_dtype": spec.dtype,
        "model_device_type": spec.device.partition(":")[0],
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": slot.entry.max_concurrent_requests or MAX_INT32,
        "max_best_of": 1,
        "max_stop_sequences": MAX_STOPS,
        "max_input_tokens": generation.max_context_tokens - 1,
        "max_total_tokens": generation.max_context_tokens,
        "max_client_batch_size": 1,
        "validation_workers": LONG_THREADS,
        "router": "text-generation-router",
        "version": server_version(),
        "sha": None,
        "docker_label": None,
    }


def _type_of(spec: ModelSpec) -> dict[str, dict[str, Any]]:
    """Return the kind of a text model, and its labels or its pooling."""
    assert spec.text is not None
    if spec.task == "embed":
        return {"embedding": {"pooling": _POOLINGS.get(spec.text.pooling, spec.text.pooling)}}
    labels = spec.text.labels
    id2label = {str(i): label for i, label in enumerate(labels)}
    kind = "reranker" if kind_of(spec) == "rerank" else "classifier"
    return {kind: {"id2label": id2label, "label2id": {label: i for i, label in enumerate(labels)}}}
