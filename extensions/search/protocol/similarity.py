"""The codec of /v1/similarity."""

from typing import Any, Literal

import numpy as np
import orjson
from pydantic import Field

from app.inference.unnamed_model import UnnamedModel
from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.codec import LONG_ELEMENTS, AnswerContext, Target
from app.protocols.shared.fields.texts import MAX_TEXTS, Truncate
from app.protocols.shared.json.body import Document
from app.protocols.shared.json.output import array_to_json, list_to_json
from extensions.search.collections.contract import Metric
from extensions.search.collections.similarity import Nearest
from extensions.search.operations.similarity import SimilarityAnswer, SimilarityRequest
from extensions.search.protocol.codec import OperationRequest, SearchBody, SearchCodec
from extensions.search.protocol.reading import Fields, read_object, read_options, read_texts_or_vectors
from frameworks.core.errors import InvalidInput
from frameworks.core.vector_search import MAX_TOP_K, Vectors
from frameworks.types import DEFAULT_PRIORITY

MetricName = Literal["cosine", "dot", "euclid"]

_BY_HAND = ("items", "others")
_EMBEDDER = UnnamedModel(("embed",))
_ITEMS_PER_RESULT = 4


class SimilarityBody(SearchBody):
    """Two lists to compare with each other, or one list with itself: of texts, or of vectors."""

    items: list[str] | list[list[float]] = Field(
        description="Texts, or vectors of equal length.", examples=[["Bread rises overnight."]]
    )
    others: list[str] | list[list[float]] | None = Field(
        None,
        description="Each of `items` is compared with these, of the same kind. Default: `items` with each other.",
    )
    model: str | None = Field(
        None, description="Texts: the model that embeds them. Default: the only embedding model.", min_length=1
    )
    metric: MetricName = Field(
        "cosine", description="`cosine`, `dot` (inner product) or `euclid` (the negative distance): more is nearer."
    )
    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_TOP_K,
        description="Only the nearest of `others` for each item; of a list with itself without the item. Default: all "
        "scores.",
    )
    truncate: Truncate = None


class _Options(SearchBody):
    model: str | None = Field(None, min_length=1)
    metric: MetricName = "cosine"
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K)
    truncate: bool | None = None


class SimilarItem(ResponseBody):
    """One of `others`. `index`: its place in the list."""

    index: int
    score: float


class SimilarityResponse(ResponseBody):
    """Without `top_k` `scores`, else `nearest`. `model`, `version` and `tokens`: of texts."""

    model: str | None = None
    version: str | None = None
    metric: MetricName
    scores: list[list[float]] | None = Field(None, description="For each item its score with each of `others`.")
    nearest: list[list[SimilarItem]] | None = Field(None, description="For each item the best, highest score first.")
    tokens: int | None = None
    latency_ms: float


class SimilarityCodec(SearchCodec):
    """As Codec of app/protocols/shared/codec.py."""

    __slots__ = ()

    def decode(self, body: bytes, target: Target) -> OperationRequest:
        return read_object(body, SimilarityBody, _read)

    def is_long_to_write(self, decoded: Any, answer: SimilarityAnswer) -> bool:
        scores = answer.scores
        if isinstance(scores, Nearest):
            return _ITEMS_PER_RESULT * scores.indices.size >= LONG_ELEMENTS
        return scores.size >= LONG_ELEMENTS

    def encode(self, decoded: OperationRequest, answer: SimilarityAnswer, context: AnswerContext) -> bytes:
        request: SimilarityRequest = decoded.request
        content: dict[str, Any] = {}
        if answer.tokens is not None:
            content = {"model": context.model, "version": context.version}
        content["metric"] = request.metric.value
        if isinstance(answer.scores, Nearest):
            content["nearest"] = list_to_json(range(len(answer.scores.indices)), _row_writer(answer.scores))
        else:
            content["scores"] = array_to_json(np.ascontiguousarray(answer.scores))
        if answer.tokens is not None:
            content["tokens"] = answer.tokens
        content["latency_ms"] = round(context.latency_ms, 3)
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _row_writer(found: Nearest) -> Any:
    def write(row: int) -> list[dict[str, Any]]:
        pairs = zip(found.indices[row].tolist(), found.scores[row].tolist(), strict=True)
        return [{"index": index, "score": score} for index, score in pairs]

    return write


def _read(document: Document, fields: Fields) -> OperationRequest:
    options = read_options(document, fields, _Options, _BY_HAND)
    if "items" not in fields:
        raise InvalidInput("items", "expected a list of texts or of vectors, got nothing")
    items = read_texts_or_vectors(document, fields["items"], "items", MAX_TEXTS)
    others = None if "others" not in fields else read_texts_or_vectors(document, fields["others"], "others", MAX_TEXTS)
    has_texts = isinstance(items, list)
    if others is not None:
        _check_same_kind(items, others)
    for name in ("model", "truncate"):
        if not has_texts and name in fields:
            raise InvalidInput(name, "expected no model for vectors, got one; leave it out or send texts")
    request = SimilarityRequest(
        items, others, Metric(options.metric), options.top_k, options.model or _EMBEDDER, options.truncate is not False
    )
    return OperationRequest(request, options.priority or DEFAULT_PRIORITY, options.timeout_ms)


def _check_same_kind(items: list[str] | Vectors, others: list[str] | Vectors) -> None:
    if isinstance(items, list) or isinstance(others, list):
        if not (isinstance(items, list) and isinstance(others, list)):
            kinds = "texts" if isinstance(items, list) else "vectors"
            raise InvalidInput("others", f"expected {kinds} as in items, got another kind; send one kind")
    elif items.shape[1] != others.shape[1]:
        raise InvalidInput("others", f"expected vectors of {items.shape[1]} numbers as in items, got {others.shape[1]}")


SIMILARITY_CODEC = SimilarityCodec()
