"""Answer requests to collections: embed, search, rank again, upsert and delete."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.auth.errors import Forbidden
from app.inference.context import RequestContext
from extensions.search.collections.contract import ServedCollection
from extensions.search.operations.collections import Collections
from extensions.search.operations.requests import (
    ChangeAnswer,
    DeleteRequest,
    GivenRecord,
    Queries,
    RankedHit,
    SearchAnswer,
    SearchRequest,
    UpsertRequest,
)
from extensions.search.operations.text_vectors import Contents, FieldOf, embed
from frameworks.core.errors import FieldError, InvalidInput, ModelFailed
from frameworks.core.vector_search import Hit, Record
from frameworks.images.spec import ImageRequest
from frameworks.models.residency.subrequests import SubRequests
from frameworks.types import EmbedAnswer, ModelSpec, PairRequest, ScoreAnswer, TextRequest

_STEP = "the model of the collection"


class CollectionOperations:
    """The parts that the operations share: the collections, and the models that embed. Owned by the event loop."""

    def __init__(self, collections: Collections, parts: SubRequests) -> None:
        self.collections = collections
        self.parts = parts

    async def embed(
        self,
        context: RequestContext,
        collection: ServedCollection,
        contents: Contents,
        field_of: FieldOf,
        are_queries: bool = False,
    ) -> EmbedAnswer:
        """Return the vectors of texts or images by the model of a collection, float32 [n, dimensions].

        Raises InvalidInput for a collection without a model, Forbidden for a model that the sender may not use, and
        the errors of the model without its name.
        """
        principal = context.principal
        entry = self.collections.entry(principal, collection.settings.name)
        if entry.model is None:
            raise InvalidInput(field_of(0), "expected vectors, as the collection has no model; send vectors")
        if not context.models.may_use(entry.model):
            raise Forbidden(f"{field_of(0)}: expected vectors, as the key may not use the model of the collection")
        request = _embed_request(contents, are_queries)
        try:
            answer = await embed(self.parts, context, entry.model, request, _STEP, field_of)
        except FieldError as error:
            if error.field != "model":
                raise
            raise InvalidInput(field_of(0), f"{error.reason}; send vectors") from None
        if answer.embeddings.shape[1] != entry.dimensions:
            raise ModelFailed(
                f"collection: expected vectors of {entry.dimensions} numbers of its model, got "
                f"{answer.embeddings.shape[1]}; ask an operator to correct the settings"
            )
        return answer


def _embed_request(contents: Contents, are_queries: bool) -> TextRequest | ImageRequest:
    texts = [each for each in contents if isinstance(each, str)]
    if texts:
        return TextRequest(texts, are_queries=are_queries)
    return ImageRequest([each for each in contents if isinstance(each, bytes)])


class Searches:
    """The operation of searches."""

    def __init__(self, operations: CollectionOperations) -> None:
        self._operations = operations

    async def __call__(self, context: RequestContext, request: SearchRequest) -> SearchAnswer:
        """Raises InvalidInput, CollectionNotFound, and the errors of the models and of the collection."""
        operations = self._operations
        collection = operations.collections.get(context.principal, request.collection)
        if request.rerank_model is not None:
            context.models.slot(request.rerank_model)
        queries, tokens = request.queries, None
        if isinstance(queries, list):
            answer = await operations.embed(context, collection, queries, request.field_of, are_queries=True)
            vectors, tokens = np.asarray(answer.embeddings, np.float32), answer.tokens
        else:
            vectors = queries
        if vectors.shape[1] != collection.settings.dimensions:
            raise InvalidInput(
                "query", f"expected vectors of {collection.settings.dimensions} numbers, got {vectors.shape[1]}"
            )
        started_s = time.perf_counter()
        found = await collection.search(
            vectors,
            max(request.top_k, request.candidates) if request.rerank_model else request.top_k,
            where=request.where,
            include_vectors=request.include_vectors,
            exact=request.exact,
        )
        context.timings.computed(started_s, time.perf_counter())
        if request.rerank_model is None:
            return SearchAnswer([[RankedHit(hit) for hit in hits] for hits in found], tokens)
        ranked, pair_tokens = await self._rerank(context, request.rerank_model, queries, found)
        return SearchAnswer([hits[: request.top_k] for hits in ranked], (tokens or 0) + pair_tokens)

    async def _rerank(
        self, context: RequestContext, model: str, queries: Queries, found: Sequence[list[Hit]]
    ) -> tuple[list[list[RankedHit]], int]:
        """Return the hits in the order of the scores of a model, and the number of tokens that it read."""
        pairs: list[tuple[str, str]] = []
        for query, hits in zip(queries, found, strict=True):
            for hit in hits:
                if hit.text is None:
                    raise InvalidInput("rerank_model", f'expected records with texts, got "{hit.id}" without one')
                pairs.append((str(query), hit.text))
        if not pairs:
            return [[] for _ in found], 0

        def make(spec: ModelSpec) -> PairRequest:
            if spec.text is None or spec.task not in ("embed", "classify"):
                raise InvalidInput("rerank_model", f"expected a cross-encoder, got a model whose task is {spec.task}")
            if spec.task == "classify" and len(spec.text.labels) != 1:
                raise InvalidInput(
                    "rerank_model",
                    f"expected a cross-encoder, which has one label, got a model with {len(spec.text.labels)}",
                )
            return PairRequest(pairs)

        answer = await self._operations.parts.answer(context, model, make, f'model "{model}"', context.timings)
        assert isinstance(answer, ScoreAnswer)
        scores = iter(answer.scores)
        ranked = [[RankedHit(hit, next(scores)) for hit in hits] for hits in found]
        for row in ranked:
            row.sort(key=lambda each: -(each.rerank_score or 0.0))
        return ranked, answer.tokens


class Upserts:
    """The operation of upserts."""

    def __init__(self, operations: CollectionOperations) -> None:
        self._operations = operations

    async def __call__(self, context: RequestContext, request: UpsertRequest) -> ChangeAnswer:
        """Return when the records are durable.

        Raises InvalidInput, OutOfMemory for a full collection or disk, and the errors of the model.
        """
        operations = self._operations
        collection = operations.collections.get(context.principal, request.collection)
        records, tokens = list(request.records), None
        for kind in ("image", "text"):
            records, read = await self._embedded(context, collection, request, records, kind)
            tokens = read if tokens is None else tokens + (read or 0)
        started_s = time.perf_counter()
        given = [Record(each.id, each.vector, each.text, each.metadata) for each in records]
        try:
            count = await collection.upsert(given)
        except FieldError as error:
            raise request.renamed(error) from None
        context.timings.computed(started_s, time.perf_counter())
        return ChangeAnswer(count, tokens)

    async def _embedded(
        self,
        context: RequestContext,
        collection: ServedCollection,
        request: UpsertRequest,
        records: list[GivenRecord],
        kind: str,
    ) -> tuple[list[GivenRecord], int | None]:
        """Return the records with the vectors of those that have none, but an image or a text."""
        chosen = [i for i, each in enumerate(records) if each.vector is None and getattr(each, kind) is not None]
        if not chosen:
            return records, None
        contents = [getattr(records[i], kind) for i in chosen]
        answer = await self._operations.embed(
            context, collection, contents, lambda index: request.field_of(chosen[index], kind)
        )
        for vector, i in zip(np.asarray(answer.embeddings, np.float32), chosen, strict=True):
            records[i] = replace(records[i], vector=vector)
        return records, answer.tokens


class Deletes:
    """The operation of deletes."""

    def __init__(self, operations: CollectionOperations) -> None:
        self._operations = operations

    async def __call__(self, context: RequestContext, request: DeleteRequest) -> ChangeAnswer:
        """Return when the records are deleted on disk. Raises CollectionNotFound and the errors of the collection."""
        collection = self._operations.collections.get(context.principal, request.collection)
        started_s = time.perf_counter()
        count = await collection.delete(ids=request.ids, where=request.where)
        context.timings.computed(started_s, time.perf_counter())
        return ChangeAnswer(count)
