"""Route GET /v1/collections: list and show collections, and their records by id."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.admin.views import Views
from app.auth.principal import Principal
from app.http.openapi import describe_responses
from app.http.responses import json_response
from app.inference.collections import Collections
from app.protocols.bodies import ResponseBody
from app.protocols.search.codec import SearchErrorResponse
from frameworks.collections.contract import CollectionInfo
from frameworks.errors import RecordNotFound


class IndexDescription(ResponseBody):
    """The index of a collection. `state`: none, building, ready, missed (its recall was too low) or failed."""

    state: str
    recall: float | None = Field(None, description="Share of the exact hits that it finds, as measured.")
    unindexed_rows: int = Field(description="Records that are newer than the index; each search compares them.")
    reason: str | None = None


class CollectionDescription(ResponseBody):
    """One collection. `model`: embeds its texts; null without one, and where the key may not use it."""

    name: str
    rows: int
    dimensions: int
    metric: str
    model: str | None
    metadata_keys: list[str]
    memory_bytes: int
    disk_bytes: int
    max_rows: int | None
    index: IndexDescription


class CollectionList(ResponseBody):
    """The collections that the key may use."""

    collections: list[CollectionDescription]


class RecordDescription(ResponseBody):
    """One record."""

    id: str
    text: str | None
    metadata: dict[str, Any]
    vector: list[float]


class CollectionsApi:
    """Handlers of the routes."""

    def __init__(self, collections: Collections, views: Views) -> None:
        self._collections = collections
        self._views = views

    def router(self) -> APIRouter:
        router = APIRouter(tags=["search"])
        add = router.add_api_route
        add("/v1/collections", self.list_collections, methods=["GET"], summary="List collections",
            responses=describe_responses(CollectionList, SearchErrorResponse))  # fmt: skip
        add("/v1/collections/{collection}", self.show_collection, methods=["GET"], summary="Show a collection",
            responses=describe_responses(CollectionDescription, SearchErrorResponse))  # fmt: skip
        add("/v1/collections/{collection}/records/{rest:path}", self.show_record, methods=["GET"],
            summary="Show a record", responses=describe_responses(RecordDescription, SearchErrorResponse))  # fmt: skip
        return router

    async def list_collections(self, request: Request) -> Response:
        """List the collections that the key may use."""
        principal = _principal_of(request)
        infos = await self._collections.infos(principal)
        return json_response({"collections": [self._describe(info, principal) for info in infos]})

    async def show_collection(self, collection: str, request: Request) -> Response:
        """Show one collection."""
        principal = _principal_of(request)
        info = await self._collections.owned(principal, collection).info()
        return json_response(self._describe(info, principal))

    async def show_record(self, collection: str, rest: str, request: Request) -> Response:
        """Show the record with the id that is the rest of the path."""
        opened = self._collections.owned(_principal_of(request), collection)
        (record,) = await opened.get([rest], include_vectors=True)
        if record is None:
            raise RecordNotFound(collection, rest)
        vector = [] if record.vector is None else record.vector.tolist()
        return json_response(
            {"id": record.id, "text": record.text, "metadata": record.metadata or {}, "vector": vector}
        )

    def _describe(self, info: CollectionInfo, principal: Principal) -> dict[str, Any]:
        entry = self._collections.entry(principal, info.name)
        model = entry.model
        if model is not None and not self._views.of(principal).models.may_use(model):
            model = None
        index = info.index
        return {
            "name": info.name,
            "rows": info.rows,
            "dimensions": info.dimensions,
            "metric": info.metric.value,
            "model": model,
            "metadata_keys": list(info.metadata_keys),
            "memory_bytes": info.memory_bytes,
            "disk_bytes": info.disk_bytes,
            "max_rows": entry.max_rows,
            "index": {
                "state": index.state.value,
                "recall": index.recall,
                "unindexed_rows": index.unindexed_rows,
                "reason": index.reason,
            },
        }


def _principal_of(request: Request) -> Principal:
    principal: Principal = request.scope["record"].principal
    return principal
