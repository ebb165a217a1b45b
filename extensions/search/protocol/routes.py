"""The routes of searches, with their descriptions for OpenAPI."""

from pydantic import BaseModel

from app.protocols.shared.codec import Codec
from app.protocols.shared.routes import Route, RouteDescription
from extensions.search.protocol import bodies
from extensions.search.protocol.codec import SearchErrorResponse
from extensions.search.protocol.collections import DELETE_CODEC, SEARCH_CODEC
from extensions.search.protocol.similarity import SIMILARITY_CODEC, SimilarityBody, SimilarityResponse
from extensions.search.protocol.upserts import UPSERT_CODEC

_COLLECTION = "/v1/collections/{collection}"


def _route(path: str, codec: Codec, summary: str, request: type[BaseModel], response: type[BaseModel]) -> Route:
    codes = frozenset({"collection_not_found"} if path.startswith(_COLLECTION) else ())
    description = RouteDescription("search", summary, request, response, SearchErrorResponse, codes=codes)
    return Route(path, codec, description)


ROUTES = (
    _route("/v1/similarity", SIMILARITY_CODEC, "Compare texts or vectors", SimilarityBody, SimilarityResponse),
    _route(
        f"{_COLLECTION}/search", SEARCH_CODEC, "Search a collection", bodies.SearchCollection, bodies.SearchResponse
    ),
    _route(
        f"{_COLLECTION}/upsert", UPSERT_CODEC, "Insert or replace records", bodies.UpsertCollection,
        bodies.UpsertResponse,
    ),
    _route(f"{_COLLECTION}/delete", DELETE_CODEC, "Delete records", bodies.DeleteFromCollection, bodies.DeleteResponse),
)  # fmt: skip
