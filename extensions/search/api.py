"""Route /v1/collections: list, show, create and delete collections, and show their records by id."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.admin.bodies import describe_body, read_object
from app.admin.views import Views
from app.auth.principal import Principal
from app.http.routes.openapi import describe_responses
from app.http.routes.responses import json_response
from app.inference.lifecycle import Lifecycle
from app.protocols.shared import bodies
from app.protocols.shared.bodies import Body, ResponseBody
from app.protocols.shared.errors import NotSupported
from extensions.search.collections.contract import MAX_DIMENSIONS, CollectionInfo
from extensions.search.operations.collections import Collections
from extensions.search.protocol.codec import SearchErrorResponse
from extensions.search.settings import COLLECTION_NAME, CollectionEntry
from frameworks.core.errors import RecordNotFound

_Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]


class NewCollection(Body):
    """A collection to create. The fields are those of an entry `[[collections]]` of config.toml."""

    name: Annotated[str, Field(pattern=COLLECTION_NAME)]
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)]
    metric: Literal["cosine", "dot", "euclid"] = "cosine"
    model: str | None = Field(None, description="Embeds texts; default: requests send vectors.")
    index_rows: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="Rows from which an index is built; 0: never. Default: 200000."
    )
    max_rows: _Positive | None = Field(None, description="Default: no bound but memory and disk.")


class DeletedCollection(ResponseBody):
    """The name of a collection that is gone."""

    deleted: str


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
    is_created: bool = Field(description="Created at run time; others are those of the config file.")
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

    def __init__(self, collections: Collections, views: Views, lifecycle: Lifecycle, max_body_bytes: int) -> None:
        self._collections = collections
        self._views = views
        self._lifecycle = lifecycle
        self._max_body_bytes = max_body_bytes

    def router(self) -> APIRouter:
        router = APIRouter(tags=["search"])
        add = router.add_api_route
        add("/v1/collections", self.list_collections, methods=["GET"], summary="List collections",
            responses=describe_responses(CollectionList, SearchErrorResponse))  # fmt: skip
        add("/v1/collections", self.create_collection, methods=["POST"], status_code=201,
            summary="Create a collection",
            responses=describe_responses(CollectionDescription, SearchErrorResponse, status=201),
            openapi_extra=describe_body(bodies.schema_of(NewCollection), example=_EXAMPLE))  # fmt: skip
        add("/v1/collections/{collection}", self.show_collection, methods=["GET"], summary="Show a collection",
            responses=describe_responses(CollectionDescription, SearchErrorResponse))  # fmt: skip
        add("/v1/collections/{collection}", self.delete_collection, methods=["DELETE"], summary="Delete a collection",
            responses=describe_responses(DeletedCollection, SearchErrorResponse))  # fmt: skip
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

    async def create_collection(self, request: Request) -> Response:
        """Create a collection below `./collections`, and keep its settings for the next start.

        A name that the key may not use is refused with 403. Files of an earlier collection of this name are used again.
        """
        self._lifecycle.check_accepting()
        body = bodies.read_body(NewCollection, await read_object(request, self._max_body_bytes))
        if not self._collections.may_create:
            raise NotSupported("a deployment on Ray creates no collection; serve it with `roundhouse serve` beside it")
        principal = _principal_of(request)
        if body.model is not None:
            self._views.for_request(request).models.slot(body.model)
        await self._collections.create(principal, CollectionEntry(**body.model_dump(exclude_none=True)))
        info = await self._collections.owned(principal, body.name).info()
        return json_response(self._describe(info, principal), 201)

    async def delete_collection(self, collection: str, request: Request) -> Response:
        """Delete a collection that was created at run time, with its files.

        One of the config file is refused with 403.
        """
        self._lifecycle.check_accepting()
        await self._collections.delete(_principal_of(request), collection)
        return json_response({"deleted": collection})

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
            "is_created": self._collections.is_created(info.name),
            "index": {
                "state": index.state.value,
                "recall": index.recall,
                "unindexed_rows": index.unindexed_rows,
                "reason": index.reason,
            },
        }


_EXAMPLE = {"name": "notes", "dimensions": 384, "model": "minilm"}


def _principal_of(request: Request) -> Principal:
    principal: Principal = request.scope["record"].principal
    return principal
