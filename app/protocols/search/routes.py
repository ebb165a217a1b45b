"""The routes of searches, with their descriptions for OpenAPI."""

from app.protocols.routes import Route, RouteDescription
from app.protocols.search.codec import SearchErrorResponse
from app.protocols.search.similarity import SIMILARITY_CODEC, SimilarityBody, SimilarityResponse

ROUTES = (
    Route(
        "/v1/similarity",
        SIMILARITY_CODEC,
        RouteDescription("search", "Compare texts or vectors", SimilarityBody, SimilarityResponse, SearchErrorResponse),
    ),
)
