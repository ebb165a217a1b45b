"""The routes of Text Embeddings Inference, with their descriptions for OpenAPI."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, RootModel

from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.routes import Route, body_route
from extensions.clients.tei.texts import (
    EMBED_CODEC,
    EMBED_SPARSE_CODEC,
    LABELS_CODEC,
    PREDICT_CODEC,
    RERANK_CODEC,
    ROOT_CODEC,
    SIMILARITY_CODEC,
    TOKENIZE_CODEC,
    TeiCodec,
)


class TeiVectors(RootModel[list[list[float]]]):
    """One vector for each text, in the order of the texts."""

    model_config = ConfigDict(defer_build=True)


class TeiSparseValue(ResponseBody):
    """An element of a sparse vector: its place in the vocabulary, and its weight."""

    index: int
    value: float


class TeiSparseVectors(RootModel[list[list[TeiSparseValue]]]):
    """For each text its elements that are not 0, by ascending index."""

    model_config = ConfigDict(defer_build=True)


class TeiRankedText(ResponseBody):
    """The score of one text. `text`: on request."""

    index: int
    score: float
    text: str | None = None


class TeiRanks(RootModel[list[TeiRankedText]]):
    """Texts by descending score."""

    model_config = ConfigDict(defer_build=True)


class TeiPrediction(ResponseBody):
    """The score of one label."""

    score: float
    label: str


class TeiPredictions(RootModel[list[TeiPrediction] | list[list[TeiPrediction]]]):
    """The labels of a text by descending score; for a list of texts a list of such."""

    model_config = ConfigDict(defer_build=True)


class TeiSimilarities(RootModel[list[float]]):
    """One cosine for each sentence."""

    model_config = ConfigDict(defer_build=True)


class TeiRootResponse(RootModel[list[list[float]] | list[float] | list[TeiPrediction] | list[list[TeiPrediction]]]):
    """The response of /embed, /predict or /similarity."""

    model_config = ConfigDict(defer_build=True)


class TeiToken(ResponseBody):
    """One token. `start`, `stop`: its first character, and the one after its last; null for a special token."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiTokens(RootModel[list[list[TeiToken]]]):
    """The tokens of each text."""

    model_config = ConfigDict(defer_build=True)


class TeiErrorResponse(ResponseBody):
    """The body of every response of these routes with a status of 400 or above."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer"]


def _route(codec: TeiCodec, summary: str, response: type[BaseModel], field: str | None = None) -> Route:
    return body_route(codec, "tei", summary, response, TeiErrorResponse)._replace(field=field)


_RANK = _route(RERANK_CODEC, "Rank texts by a query", TeiRanks, "texts")
_SIMILARITY = _route(SIMILARITY_CODEC, "Compare sentences", TeiSimilarities)

ROUTES = (
    _route(EMBED_CODEC, "Embed texts", TeiVectors),
    _route(EMBED_SPARSE_CODEC, "Embed texts as sparse vectors", TeiSparseVectors),
    _route(PREDICT_CODEC, "Classify texts", TeiPredictions),
    _SIMILARITY,
    _RANK,
    _route(TOKENIZE_CODEC, "Tokens of texts", TeiTokens, "inputs"),
)
"""Those with a `field` share the path with a route of another protocol, which comes first in the table."""


def root_routes(generating: BodyCodec) -> list[Route]:
    """Return the routes of POST /, which the task of the model decides. `generating`: of models that generate text."""
    root, labels = (
        _route(codec.with_tasks(("generate",), generating), "Run a text model", TeiRootResponse)
        for codec in (ROOT_CODEC, LABELS_CODEC)
    )
    # huggingface_hub sends `parameters` with texts to classify, and with sentences to compare.
    shared = (_RANK, labels._replace(field="parameters"), _SIMILARITY._replace(field="source_sentence"))
    return [each._replace(path="/", others=frozenset({"GET", "HEAD"})) for each in (root, *shared)]
