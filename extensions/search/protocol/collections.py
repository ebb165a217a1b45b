"""The codecs of searches, upserts and deletes."""

from typing import Any

import orjson

from app.protocols.shared.bodies import got
from app.protocols.shared.codec import LONG_ELEMENTS, AnswerContext, Target
from app.protocols.shared.json.body import Document, Node
from app.protocols.shared.json.output import list_to_json
from extensions.search.operations.requests import (
    ChangeAnswer,
    DeleteRequest,
    Queries,
    RankedHit,
    SearchAnswer,
    SearchRequest,
)
from extensions.search.protocol.bodies import (
    DEFAULT_CANDIDATES,
    MAX_QUERIES,
    DeleteFromCollection,
    DeleteOptions,
    SearchCollection,
    SearchOptions,
)
from extensions.search.protocol.codec import OperationRequest, SearchBody, SearchCodec
from extensions.search.protocol.reading import (
    Fields,
    read_image_object,
    read_object,
    read_options,
    read_vector_or_vectors,
)
from frameworks.core.errors import InvalidInput
from frameworks.core.filters import Filter, parse_filter
from frameworks.types import DEFAULT_PRIORITY

_ELEMENTS_PER_HIT = 16


def with_options(request: Any, options: SearchBody, form: Any = None) -> OperationRequest:
    return OperationRequest(request, options.priority or DEFAULT_PRIORITY, options.timeout_ms, form)


class SearchCollectionCodec(SearchCodec):
    """As Codec of app/protocols/shared/codec.py."""

    __slots__ = ()

    def decode(self, body: bytes, target: Target) -> OperationRequest:
        name = named(target)
        return read_object(body, SearchCollection, lambda document, fields: _read_search(name, document, fields))

    def is_long_to_write(self, decoded: OperationRequest, answer: SearchAnswer) -> bool:
        elements = sum(
            each.hit.vector.size for hits in answer.hits for each in hits[:1] if each.hit.vector is not None
        ) * max(map(len, answer.hits), default=0)
        return elements + _ELEMENTS_PER_HIT * sum(map(len, answer.hits)) >= LONG_ELEMENTS

    def encode(self, decoded: OperationRequest, answer: SearchAnswer, context: AnswerContext) -> bytes:
        request: SearchRequest = decoded.request

        def write(ranked: RankedHit) -> dict[str, Any]:
            return _describe(ranked, decoded.form)

        results = [list_to_json(hits, write) for hits in answer.hits]
        content = {"collection": request.collection, "results": results if request.is_list else results[0]}
        if answer.tokens is not None:
            content["tokens"] = answer.tokens
        content["latency_ms"] = round(context.latency_ms, 3)
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _describe(ranked: RankedHit, options: SearchOptions) -> dict[str, Any]:
    hit = ranked.hit
    described: dict[str, Any] = {"id": hit.id, "score": hit.score}
    if ranked.rerank_score is not None:
        described["rerank_score"] = ranked.rerank_score
    if options.include_text and hit.text is not None:
        described["text"] = hit.text
    if options.include_metadata:
        described["metadata"] = hit.metadata
    if hit.vector is not None:
        described["vector"] = hit.vector
    return described


def _read_search(name: str, document: Document, fields: Fields) -> OperationRequest:
    options = read_options(document, fields, SearchOptions, ("query", "filter"))
    if "query" not in fields:
        raise InvalidInput("query", "expected a text, a vector or an image, or a list of these, got nothing")
    where = _read_filter(document, fields)
    queries, is_list = _read_queries(document, fields["query"])
    if options.rerank_model is not None and not (isinstance(queries, list) and isinstance(queries[0], str)):
        raise InvalidInput("query", "expected texts with rerank_model, got another kind; send texts or no rerank_model")
    if options.candidates is not None and options.rerank_model is None:
        raise InvalidInput("candidates", "expected a number beside rerank_model only; leave it out")
    request = SearchRequest(
        name,
        queries,
        options.top_k,
        where,
        options.rerank_model,
        options.candidates or DEFAULT_CANDIDATES,
        options.include_vectors,
        options.exact,
        is_list,
    )
    return with_options(request, options, options)


def _read_queries(document: Document, node: Node) -> tuple[Queries, bool]:
    """Return the queries, and whether they were sent as a list."""
    if isinstance(node, str):
        return [node], False
    if document.is_object(node):
        return [read_image_object(document, node, "query")], False
    if not document.is_array(node):
        raise InvalidInput("query", f"expected a text, a vector or an image, got {got(node)}")
    return read_vector_or_vectors(document, node, "query", MAX_QUERIES)


class DeleteCodec(SearchCodec):
    """As Codec of app/protocols/shared/codec.py."""

    __slots__ = ()

    def decode(self, body: bytes, target: Target) -> OperationRequest:
        name = named(target)
        return read_object(body, DeleteFromCollection, lambda document, fields: _read_delete(name, document, fields))

    def is_long_to_write(self, decoded: OperationRequest, answer: ChangeAnswer) -> bool:
        return False

    def encode(self, decoded: OperationRequest, answer: ChangeAnswer, context: AnswerContext) -> bytes:
        content = {"collection": decoded.request.collection, "deleted": answer.count}
        return orjson.dumps({**content, "latency_ms": round(context.latency_ms, 3)})


def _read_delete(name: str, document: Document, fields: Fields) -> OperationRequest:
    options = read_options(document, fields, DeleteOptions, ("filter",))
    where = _read_filter(document, fields)
    given = [each for each in ("ids", "filter", "all") if fields.get(each) not in (None, False)]
    if len(given) != 1:
        raise InvalidInput(
            given[-1] if given else "ids", f"expected one of ids, filter and all, got {' and '.join(given) or 'none'}"
        )
    if fields.get("filter") is not None and not document.python(fields["filter"]):
        raise InvalidInput("filter", "expected a condition, got an empty object; send all to delete every record")
    if options.all:
        where = parse_filter({})
    return with_options(DeleteRequest(name, options.ids, where), options)


def _read_filter(document: Document, fields: Fields) -> Filter | None:
    node = fields.get("filter")
    return None if node is None else parse_filter(document.python(node), "filter")


def named(target: Target) -> str:
    assert target.resource is not None
    return target.resource


SEARCH_CODEC = SearchCollectionCodec()
DELETE_CODEC = DeleteCodec()
