"""The routes of Cohere's API, with their descriptions for OpenAPI."""

from typing import Any, Literal

from pydantic import Field

from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.routes import body_route
from extensions.clients.cohere.codec import EMBED_CODEC, RERANK_CODEC


class CohereMeta(ResponseBody):
    """The version of the API, and the counts of the request."""

    api_version: dict[str, str]
    billed_units: dict[str, int]


class EmbeddingsByType(ResponseBody):
    """One vector for each text or image, in each requested form.

    `binary`, `ubinary`: a bit for each number, 8 to a byte.
    """

    float: list[list[Any]] | None = None
    base64: list[str] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None


class CohereImage(ResponseBody):
    """One image file, as it was sent. `bit_depth`: bits of a pixel."""

    width: int
    height: int
    format: Literal["jpeg", "png", "webp"]
    bit_depth: int


class CohereEmbedResponse(ResponseBody):
    """The vectors, in the order of the texts or images. `texts`: empty for images. `images`: empty for texts."""

    response_type: Literal["embeddings_by_type"]
    id: str
    embeddings: EmbeddingsByType
    texts: list[str]
    images: list[CohereImage]
    meta: CohereMeta


class CohereRankedDocument(ResponseBody):
    """The score of one document."""

    index: int = Field(description="Index of the document in the request.")
    relevance_score: float
    document: dict[str, str] | None = None


class CohereRerankResponse(ResponseBody):
    """Documents by descending score. `model` and `usage`: as vLLM has them."""

    id: str
    results: list[CohereRankedDocument]
    meta: CohereMeta
    model: str
    usage: dict[str, int]


class CohereErrorResponse(ResponseBody):
    """The body of every response of these routes with a status of 400 or above. `id`: of the request."""

    id: str
    message: str


ROUTES = tuple(
    body_route(codec, "cohere", summary, response, CohereErrorResponse)
    for codec, summary, response in (
        (EMBED_CODEC, "Embed texts", CohereEmbedResponse),
        (RERANK_CODEC, "Rank documents by a query", CohereRerankResponse),
    )
)
