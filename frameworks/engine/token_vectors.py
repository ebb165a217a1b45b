"""Answer text requests to a model of late interaction: vectors of tokens, and MaxSim between them."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from frameworks.engine.scoring import PairedTexts
from frameworks.engine.threads import TokenizerThreads
from frameworks.text.late_tokenizer import LateTokenizer
from frameworks.text.pooling import normalize_rows
from frameworks.types import Array, MultiVectorAnswer, PairRequest, ScoreAnswer, TokenBatch, Truncation

# Numbers of the documents of one block, 16 MB, and of its products.
_BLOCK_NUMBERS = 4 * 1024 * 1024


async def read_sides(
    threads: TokenizerThreads, tokenizer: LateTokenizer, texts: list[str], truncate: Truncation, num_queries: int
) -> TokenBatch:
    """Tokenize texts, of which the first `num_queries` are queries. Raises InvalidInput as TextTokenizer.tokenize."""

    def read(start: int, stop: int) -> TokenBatch:
        return tokenizer.read(texts[start:stop], truncate, min(max(num_queries - start, 0), stop - start), start)

    pieces = await threads.run_pieces(map(len, texts), read)
    attended = chain.from_iterable(piece.attended or () for piece in pieces)
    return TokenBatch(list(chain.from_iterable(piece.token_ids for piece in pieces)), attended=list(attended))


def finished(
    tokenizer: LateTokenizer, rows: Array, token_ids: list[list[int]], num_queries: int, normalize: bool
) -> MultiVectorAnswer:
    """Keep the vectors that the model's files want. `rows`: an object array [texts] of float32 [tokens, size]."""
    vectors = []
    for index, ids in enumerate(token_ids):
        own = rows[index] if index < num_queries else rows[index][tokenizer.has_vector(ids)]
        vectors.append(normalize_rows(own) if normalize else own)
    return MultiVectorAnswer(vectors, sum(map(len, token_ids)))


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
