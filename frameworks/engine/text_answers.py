"""Compute the answers of text models from their rows: vectors of each kind, labels, and the scores of pairs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.text.late.tokenizer import LateTokenizer
from frameworks.text.pooling import normalize_rows, scores
from frameworks.types import (
    Array,
    ClassifyAnswer,
    CombinedAnswer,
    EmbedAnswer,
    MultiVectorAnswer,
    PairRequest,
    ScoreAnswer,
    SparseAnswer,
    Task,
    TextRequest,
    TextSpec,
    TokenBatch,
    VectorAnswer,
    Vectors,
)

PAIR_FIELD = re.compile(r"pairs\[(?P<pair>\d+)\](\[(?P<side>[01])\])?")
"""The field of an InvalidInput: a pair, or one of its two texts."""

_NO_ROWS = np.empty((0, 0), dtype=np.float32)
_TEXT_FIELD = re.compile(r"text\[(\d+)\]")
# Rows of one multiplication. Other threads run between two of them.
_BLOCK_ROWS = 1024
# Numbers of the documents of one block, 16 MB, and of its products.
_BLOCK_NUMBERS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PairedTexts:
    """The distinct `texts` of pairs. `firsts`, `seconds`: for each pair, the indices of its two texts."""

    texts: list[str]
    firsts: list[int]
    seconds: list[int]

    def name_pair(self, error: InvalidInput) -> InvalidInput:
        """Return the error of one text under the field of the first pair that has this text."""
        named = _TEXT_FIELD.fullmatch(error.field)
        if named is None:
            return error
        index = int(named[1])
        side, indices = (0, self.firsts) if index in self.firsts else (1, self.seconds)
        return InvalidInput(f"pairs[{indices.index(index)}][{side}]", error.reason)


def name_pair(error: InvalidInput) -> InvalidInput:
    """Return the error of a cross-encoder's text under the field of its pair: both texts are tokenized as one."""
    named = _TEXT_FIELD.fullmatch(error.field)
    return error if named is None else InvalidInput(f"pairs[{named[1]}]", error.reason)


def distinct_texts(request: PairRequest) -> PairedTexts:
    """Return each text once, so that a query that is in every pair is embedded once."""
    indices: dict[str, int] = {}
    firsts = [indices.setdefault(first, len(indices)) for first, _ in request.pairs]
    seconds = [indices.setdefault(second, len(indices)) for _, second in request.pairs]
    return PairedTexts(list(indices), firsts, seconds)


def cosines(pairs: PairedTexts, answer: EmbedAnswer) -> ScoreAnswer:
    """Return the cosine of each pair. `answer`: the embeddings of the texts [texts, size], of length 1 or all zeros."""
    scores_of_pairs: list[float] = []
    for at in range(0, len(pairs.firsts), _BLOCK_ROWS):
        firsts = answer.embeddings[pairs.firsts[at : at + _BLOCK_ROWS]].astype(np.float64)
        seconds = answer.embeddings[pairs.seconds[at : at + _BLOCK_ROWS]].astype(np.float64)
        scores_of_pairs += np.einsum("ij,ij->i", firsts, seconds).clip(-1.0, 1.0).tolist()
    return ScoreAnswer(scores_of_pairs, answer.tokens)


def dot_products(pairs: PairedTexts, answer: SparseAnswer) -> ScoreAnswer:
    """Return the dot product of the sparse vectors of each pair."""
    found = []
    for first, second in zip(pairs.firsts, pairs.seconds, strict=True):
        _, at, other = np.intersect1d(
            answer.indices[first], answer.indices[second], assume_unique=True, return_indices=True
        )
        products = answer.values[first][at].astype(np.float64) * answer.values[second][other]
        found.append(float(products.sum()))
    return ScoreAnswer(found, answer.tokens)


def texts_by_side(request: PairRequest) -> tuple[PairedTexts, int]:
    """Return each query and each document once, the queries first, and the number of queries."""
    queries = {first: index for index, first in enumerate(dict.fromkeys(first for first, _ in request.pairs))}
    documents = dict.fromkeys(second for _, second in request.pairs)
    places = {second: index for index, second in enumerate(documents, start=len(queries))}
    firsts = [queries[first] for first, _ in request.pairs]
    return PairedTexts([*queries, *documents], firsts, [places[second] for _, second in request.pairs]), len(queries)


def max_sims(pairs: PairedTexts, answer: MultiVectorAnswer) -> ScoreAnswer:
    """Return the MaxSim of each pair."""
    scores = np.zeros(len(pairs.firsts))
    by_query: dict[int, list[int]] = {}
    for index, first in enumerate(pairs.firsts):
        by_query.setdefault(first, []).append(index)
    for first, indices in by_query.items():
        documents = [answer.vectors[pairs.seconds[index]] for index in indices]
        scores[indices] = max_sim(answer.vectors[first], documents)
    return ScoreAnswer(scores.tolist(), answer.tokens)


def max_sim(query: Array, documents: Sequence[Array]) -> Array:
    """Return float64 [documents]: for each vector of the query its best product with the document's, summed up.

    `query`: float32 [tokens, size]. A document without vectors has the score 0. Products of a block of documents are
    one multiplication, without the interpreter's lock.
    """
    scores = np.zeros(len(documents))
    widest = max(query.shape)
    block: list[int] = []
    tokens = 0
    for index, document in enumerate(documents):
        if not len(document) or not len(query):
            continue
        if block and (tokens + len(document)) * widest > _BLOCK_NUMBERS:
            scores[block] = _of_block(query, [documents[i] for i in block])
            block, tokens = [], 0
        block.append(index)
        tokens += len(document)
    if block:
        scores[block] = _of_block(query, [documents[i] for i in block])
    return scores


def _of_block(query: Array, documents: Sequence[Array]) -> Array:
    starts = np.cumsum([0, *map(len, documents[:-1])])
    products = np.matmul(query, np.concatenate(documents).T)
    best: Array = np.maximum.reduceat(products, starts, axis=1)
    return np.asarray(best.sum(axis=0, dtype=np.float64))


def probabilities(logits: Array, tokens: TokenBatch, raw_scores: bool) -> ScoreAnswer:
    """Return the sigmoid of a cross-encoder's logits [pairs, 1], as sentence-transformers' CrossEncoder does.

    `raw_scores`: return the logits, for requests and models that want them.
    """
    rows = logits.astype(np.float64) if raw_scores else scores(logits, multi_label=True)
    return ScoreAnswer(rows[:, 0].tolist(), sum(map(len, tokens.token_ids)))


def ranked(probabilities: Array, labels: tuple[str, ...], top_k: int | None, tokens: int = 0) -> ClassifyAnswer:
    """Return the labels of each row by falling score; equal scores in the order of the labels."""
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k].tolist()
    rows = [[(labels[i], float(row[i])) for i in best] for row, best in zip(probabilities, order, strict=True)]
    return ClassifyAnswer(rows, tokens, order if len(set(labels)) < len(labels) else None)


def without_texts(kinds: tuple[Vectors, ...]) -> VectorAnswer:
    """Return the answer to a request without texts."""
    return _sole_or_combined(
        EmbedAnswer(_NO_ROWS, tokens=0) if "dense" in kinds else None,
        SparseAnswer([], [], tokens=0) if "sparse" in kinds else None,
        MultiVectorAnswer([], tokens=0) if "multi" in kinds else None,
    )


def _sole_or_combined(
    dense: EmbedAnswer | None, sparse: SparseAnswer | None, multi: MultiVectorAnswer | None
) -> VectorAnswer:
    """Return the answer of the only kind, else all of them."""
    combined = CombinedAnswer(dense, sparse, multi)
    return combined.answers[0] if len(combined.answers) == 1 else combined


def finished(
    task: Task, text: TextSpec, request: TextRequest, rows: Array, token_ids: list[list[int]]
) -> EmbedAnswer | ClassifyAnswer:
    """Compute the answer from the model's rows [texts, embedding size or labels]."""
    if task == "classify":
        return classified(text, request.raw_scores, request.top_k, rows, token_ids)
    return _embedded(text, request, rows, token_ids)


def _embedded(text: TextSpec, request: TextRequest, rows: Array, token_ids: list[list[int]]) -> EmbedAnswer:
    normalize = text.normalize if request.normalize is None else request.normalize
    rows = rows[:, : request.dimensions]
    return EmbedAnswer(normalize_rows(rows) if normalize else rows, tokens=sum(map(len, token_ids)))


def sparse_of(request: TextRequest, rows: Iterable[tuple[Array, Array]], token_ids: list[list[int]]) -> SparseAnswer:
    """Keep the elements that the request asks for. `rows`: indices and values of each text."""
    kept = []
    for row in rows:
        indices, values = row if request.min_value == 0 else _above(row[0], row[1], request.min_value)
        kept.append((indices, values) if request.top_k is None else _highest(indices, values, request.top_k))
    return SparseAnswer([each for each, _ in kept], [each for _, each in kept], sum(map(len, token_ids)))


def size_of_kinds(row: dict[Vectors, Any]) -> int:
    """Return the number of numbers in the vectors of a text."""
    return sum(value[1].size if kind == "sparse" else value.size for kind, value in row.items())


def of_kinds(
    text: TextSpec, request: TextRequest, kinds: tuple[Vectors, ...], rows: Array, token_ids: list[list[int]]
) -> VectorAnswer:
    """Compute the answer from an object array [texts] of vectors by kind."""
    dense = sparse = multi = None
    if "dense" in kinds:
        dense = _embedded(text, request, np.stack([row["dense"] for row in rows]), token_ids)
    if "sparse" in kinds:
        sparse = sparse_of(request, [row["sparse"] for row in rows], token_ids)
    if "multi" in kinds:
        own = [row["multi"] for row in rows]
        vectors = own if request.normalize is False else [normalize_rows(each) for each in own]
        multi = MultiVectorAnswer(vectors, sum(map(len, token_ids)))
    return _sole_or_combined(dense, sparse, multi)


def _above(indices: Array, values: Array, min_value: float) -> tuple[Array, Array]:
    is_kept = values >= min_value
    return indices[is_kept], values[is_kept]


def _highest(indices: Array, values: Array, top_k: int) -> tuple[Array, Array]:
    """Return the elements of the highest values, by ascending index; of equal values those of lower indices."""
    order = np.sort(np.argsort(-values, kind="stable")[:top_k])
    return indices[order], values[order]


def token_vectors_of(
    tokenizer: LateTokenizer, rows: Array, token_ids: list[list[int]], num_queries: int, normalize: bool
) -> MultiVectorAnswer:
    """Keep the vectors that the model's files want. `rows`: an object array [texts] of float32 [tokens, size]."""
    vectors = []
    for index, ids in enumerate(token_ids):
        own = rows[index] if index < num_queries else rows[index][tokenizer.has_vector(ids)]
        vectors.append(normalize_rows(own) if normalize else own)
    return MultiVectorAnswer(vectors, sum(map(len, token_ids)))


def classified(
    text: TextSpec, raw_scores: bool, top_k: int | None, rows: Array, token_ids: Sequence[Sequence[int]]
) -> ClassifyAnswer:
    """Compute the answer from the model's logits [texts, labels]."""
    is_plain = raw_scores or text.is_regression
    values = rows.astype(np.float64) if is_plain else scores(rows, text.multi_label)
    return ranked(values, text.labels, top_k, sum(map(len, token_ids)))
