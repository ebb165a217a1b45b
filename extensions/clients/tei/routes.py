"""The routes of Text Embeddings Inference, with their descriptions for OpenAPI."""

from pydantic import BaseModel

from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.routes import Route, RouteDescription
from extensions.clients.tei import responses
from extensions.clients.tei.codec import TeiCodec
from extensions.clients.tei.rerank import RERANK_CODEC
from extensions.clients.tei.texts import EMBED_CODEC, LABELS_CODEC, PREDICT_CODEC, ROOT_CODEC, SIMILARITY_CODEC
from extensions.clients.tei.tokens import TOKENIZE_CODEC

_GET = frozenset({"GET", "HEAD"})


def _describe(codec: TeiCodec, summary: str, response: type[BaseModel]) -> RouteDescription:
    return RouteDescription("tei", summary, codec.body, response, responses.TeiErrorResponse)


_RANK = _describe(RERANK_CODEC, "Rank texts by a query", responses.TeiRanks)
_SIMILARITY = _describe(SIMILARITY_CODEC, "Compare sentences", responses.TeiSimilarities)
_TOKENIZE = _describe(TOKENIZE_CODEC, "Tokens of texts", responses.TeiTokens)

ROUTES = (
    Route("/embed", EMBED_CODEC, _describe(EMBED_CODEC, "Embed texts", responses.TeiVectors)),
    Route("/predict", PREDICT_CODEC, _describe(PREDICT_CODEC, "Classify texts", responses.TeiPredictions)),
    Route("/similarity", SIMILARITY_CODEC, _SIMILARITY),
    Route("/rerank", RERANK_CODEC, _RANK, field="texts"),
    Route("/tokenize", TOKENIZE_CODEC, _TOKENIZE, field="inputs"),
)
"""Those with a `field` share the path with a route of another protocol, which comes first in the table."""


def root_routes(generating: BodyCodec) -> list[Route]:
    """Return the routes of POST /, which the task of the model decides. `generating`: of models that generate text."""
    root, labels = (codec.with_task("generate", generating) for codec in (ROOT_CODEC, LABELS_CODEC))
    described = _describe(ROOT_CODEC, "Run a text model", responses.TeiRootResponse)
    return [
        Route("/", root, described, _GET),
        Route("/", RERANK_CODEC, _RANK, _GET, field="texts"),
        # huggingface_hub sends `parameters` with texts to classify, and with sentences to compare.
        Route("/", labels, described, _GET, field="parameters"),
        Route("/", SIMILARITY_CODEC, _SIMILARITY, _GET, field="source_sentence"),
    ]
