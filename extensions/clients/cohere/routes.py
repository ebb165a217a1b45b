"""The routes of Cohere's API, with their descriptions for OpenAPI."""

from app.protocols.shared.routes import Route, RouteDescription
from extensions.clients.cohere import responses
from extensions.clients.cohere.embed import EMBED_CODEC
from extensions.clients.cohere.rerank import RERANK_CODEC

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
