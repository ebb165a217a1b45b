"""The routes of Cohere's API, with their descriptions for OpenAPI."""

from app.protocols.cohere import responses
from app.protocols.cohere.embed import EMBED_CODEC
from app.protocols.cohere.rerank import RERANK_CODEC
from app.protocols.routes import Route, RouteDescription

ROUTES = tuple(
    Route(
        codec.path,
        codec,
        RouteDescription("cohere", summary, codec.body, response, responses.CohereErrorResponse),
    )
    for codec, summary, response in (
        (EMBED_CODEC, "Embed texts", responses.CohereEmbedResponse),
        (RERANK_CODEC, "Rank documents by a query", responses.CohereRerankResponse),
    )
)
