"""Text requests: texts to tokens, tokens to rows of a model, rows to embeddings, labels or scores."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.text_answers import (
    classified,
    cosines,
    distinct_texts,
    dot_products,
    finished,
    max_sims,
    name_pair,
    of_kinds,
    probabilities,
    size_of_kinds,
    sparse_of,
    texts_by_side,
    token_vectors_of,
    without_texts,
)
from frameworks.engine.threads import TokenizerThreads, size_of_prompt
from frameworks.runtime import BatchModel, StepModel
from frameworks.scheduling.batch.request import Outputs
from frameworks.scheduling.merging.rows import merge
from frameworks.text.late.tokenizer import LateTokenizer
from frameworks.text.tokenizer import TextTokenizer
from frameworks.text.tokens import DetokenizeRequest, SpansRequest, TokenAnswer, TokenRequest, answer_token_request
from frameworks.types import (
    TEXT_OUTPUT,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    MultiVectorAnswer,
    PairRequest,
    ScoreAnswer,
    SparseAnswer,
    TextRequest,
    TextSpec,
    TokenBatch,
    Truncation,
    VectorAnswer,
    Vectors,
)

Submit = Callable[[TokenBatch, int, Callable[[], None], Timings, Tenant], Awaitable[Outputs]]

_OTHER_VECTORS = {"multi": "a vector for each token", "sparse": "sparse vectors"}
_ROUTES = {"multi": "/infer or /pooling", "sparse": "/infer, /embed_sparse or /pooling"}
_PRODUCTS_PER_NUMBER = 8
_NUMBERS_PER_PAIR = 64  # as much work


class TextService:
    """Answer the text requests of one model. Owned by the event loop.

    Adds to the timings of the run; raises as Engine.answer.
    """

    def __init__(
        self, model: BatchModel | StepModel, submit: Submit, takes_token_ids: bool, threads: TokenizerThreads
    ) -> None:
        """`submit`: queues tokens, as Dispatcher.submit. `takes_token_ids`: texts may be token ids. `threads`: tokenize
        long texts, and compute long responses.
        """
        self._model = model
        self._submit = submit
        self._takes_token_ids = takes_token_ids
        self._threads = threads

    async def answer(
        self, run: Run, request: TextRequest, num_queries: int | None = None
    ) -> VectorAnswer | ClassifyAnswer:
        """Embed or classify texts. `num_queries`: of the first texts, for a model with sides; None: as the request."""
        model = self._model
        tokenizer, text = model.tokenizer, model.spec.text
        if not isinstance(tokenizer, TextTokenizer) or text is None:
            raise InvalidInput("text", "expected a model that reads text, got one that reads tensors; send tensors")
        kinds = kinds_of(text, request)
        if kinds == ("sparse",) and request.normalize:
            raise InvalidInput("normalize", "expected no true for sparse vectors, got true; leave the option out")
        if text.vectors == "multi":
            return await self._token_vectors(run, request)
        if not request.texts and request.token_ids is None:
            return ClassifyAnswer([]) if model.spec.task == "classify" else without_texts(kinds)
        started_s = time.perf_counter()
        tokens = await self._tokens_of(tokenizer, request, num_queries)
        run.timings.decoded(started_s, time.perf_counter())
        token_ids = tokens.token_ids
        await _count_tokens(run, token_ids)
        if text.other_vectors:
            tokens = replace(tokens, kinds=[kinds] * tokens.rows)
            rows = await _rows(run, self._submit, tokens)
            size = sum(size_of_kinds(row) for row in rows)
            return await self._threads.compute(size, of_kinds, text, request, kinds, rows, token_ids)
        rows = await _rows(run, self._submit, tokens)
        if text.vectors == "sparse":
            size = sum(len(values) for _, values in rows)
            return await self._threads.compute(size, sparse_of, request, rows, token_ids)
        return await self._threads.compute(rows.size, finished, model.spec.task, text, request, rows, token_ids)

    async def score(self, run: Run, request: PairRequest) -> ScoreAnswer | ClassifyAnswer:
        """Score pairs by a cross-encoder, which reads both texts at once, by the cosine of two embeddings, by the
        dot product of sparse ones, or by the MaxSim of the vectors of their tokens.

        Raises InvalidInput; its field is a PAIR_FIELD of frameworks/engine/text_answers.py.
        """
        model = self._model
        if not request.pairs:
            return ClassifyAnswer([]) if request.with_labels else ScoreAnswer([], tokens=0)
        if model.spec.task == "classify":
            assert isinstance(model.tokenizer, TextTokenizer)
            tokens = await self._tokenized(model.tokenizer, request, run.timings)
            await _count_tokens(run, tokens.token_ids)
            rows = await _rows(run, self._submit, tokens)
            text = model.spec.text
            assert text is not None
            raw_scores = request.raw_scores or text.scores_are_logits
            if request.with_labels:
                return await self._threads.compute(
                    rows.size, classified, text, raw_scores, None, rows, tokens.token_ids
                )
            return await self._threads.compute(rows.size, probabilities, rows, tokens, raw_scores)
        if model.spec.text is not None and model.spec.text.vectors == "multi":
            return await self._score_by_max_sim(run, request)
        size, num_queries = _NUMBERS_PER_PAIR * len(request.pairs), None
        if model.tokenizer is not None and model.spec.text is not None and model.spec.text.has_sides:
            pairs, num_queries = await self._threads.compute(size, texts_by_side, request)
        else:
            pairs = await self._threads.compute(size, distinct_texts, request)
        is_sparse = model.spec.text is not None and model.spec.text.vectors == "sparse"
        texts = TextRequest(
            pairs.texts, normalize=not is_sparse, truncate=request.truncate, vectors=("dense", "sparse")
        )
        try:
            embedded = await self.answer(run, texts, num_queries)
        except InvalidInput as error:
            raise pairs.name_pair(error) from None
        if isinstance(embedded, SparseAnswer):
            size = sum(len(embedded.values[second]) for second in pairs.seconds)
            return await self._threads.compute(size, dot_products, pairs, embedded)
        assert isinstance(embedded, EmbedAnswer)
        return await self._threads.compute(embedded.embeddings.size, cosines, pairs, embedded)

    async def _token_vectors(self, run: Run, request: TextRequest) -> MultiVectorAnswer:
        """Return the vectors of the tokens of queries or documents, normalised unless the request says otherwise."""
        tokenizer = self._model.tokenizer
        assert isinstance(tokenizer, LateTokenizer)
        if not request.texts and request.token_ids is None:
            return MultiVectorAnswer([], tokens=0)
        started_s = time.perf_counter()
        if request.token_ids is not None:
            self._check_takes_token_ids()
            size = sum(map(len, request.token_ids))
            tokens = TokenBatch(await self._threads.run(size, tokenizer.read_ids, request.token_ids, request.truncate))
        else:
            num_queries = len(request.texts) if request.are_queries else 0
            tokens = await _read_sides(self._threads, tokenizer, request.texts, request.truncate, num_queries)
        run.timings.decoded(started_s, time.perf_counter())
        num_queries = tokens.rows if request.are_queries else 0
        return await self._run_token_vectors(run, tokenizer, tokens, num_queries, request.normalize is not False)

    async def _run_token_vectors(
        self, run: Run, tokenizer: LateTokenizer, tokens: TokenBatch, num_queries: int, normalize: bool
    ) -> MultiVectorAnswer:
        await _count_tokens(run, tokens.token_ids)
        rows = await _rows(run, self._submit, tokens)
        size = sum(row.size for row in rows)
        return await self._threads.compute(
            size, token_vectors_of, tokenizer, rows, tokens.token_ids, num_queries, normalize
        )

    async def _score_by_max_sim(self, run: Run, request: PairRequest) -> ScoreAnswer:
        """Score pairs by MaxSim; the first text of a pair is the query."""
        tokenizer = self._model.tokenizer
        assert isinstance(tokenizer, LateTokenizer)
        started_s = time.perf_counter()
        size = _NUMBERS_PER_PAIR * len(request.pairs)
        pairs, num_queries = await self._threads.compute(size, texts_by_side, request)
        try:
            tokens = await _read_sides(self._threads, tokenizer, pairs.texts, request.truncate, num_queries)
        except InvalidInput as error:
            raise pairs.name_pair(error) from None
        finally:
            run.timings.decoded(started_s, time.perf_counter())
        answer = await self._run_token_vectors(run, tokenizer, tokens, num_queries, normalize=True)
        # A pair has many products for each number of its document.
        size = _PRODUCTS_PER_NUMBER * sum(answer.vectors[second].size for second in pairs.seconds)
        return await self._threads.compute(size, max_sims, pairs, answer)

    async def answer_token_request(self, run: Run, request: TokenRequest) -> TokenAnswer:
        """Tokenize or detokenize. The request does not wait in the queue, as the model does not run."""
        model = self._model
        run.permit.begin()
        started_s = time.perf_counter()
        try:
            return await self._threads.run(
                _size_of(request), answer_token_request, model.tokenizer, model.spec.max_tokens, request
            )
        finally:
            run.timings.computed(started_s, time.perf_counter())

    async def _tokens_of(self, tokenizer: TextTokenizer, request: TextRequest, num_queries: int | None) -> TokenBatch:
        """Return the tokens of the texts of a request, those of queries by the tokenizer of queries."""
        if tokenizer.queries is None:
            return await self._tokens_of_side(tokenizer, request, 0)
        size = len(request.texts if request.token_ids is None else request.token_ids)
        if num_queries is None:
            num_queries = size if request.are_queries else 0
        parts = []
        for each, at, end in ((tokenizer.queries, 0, num_queries), (tokenizer, num_queries, size)):
            if at < end:
                ids = None if request.token_ids is None else request.token_ids[at:end]
                own = replace(request, texts=request.texts[at:end], token_ids=ids)
                batch = await self._tokens_of_side(each, own, at)
                parts.append(replace(batch, are_queries=[each is not tokenizer] * (end - at)))
        merged = merge(parts)
        assert isinstance(merged, TokenBatch)
        return merged

    async def _tokens_of_side(self, tokenizer: TextTokenizer, request: TextRequest, first: int) -> TokenBatch:
        """`first`: number of texts before these."""
        texts, truncate, prompt = request.texts, request.truncate, request.prompt
        if request.token_ids is not None:
            self._check_takes_token_ids()
            size = sum(map(len, request.token_ids))
            token_ids = await self._threads.run(size, tokenizer.read_ids, request.token_ids, truncate)
            # Given token ids have no prompt.
            return tokenizer.batch_of(token_ids, "")
        at_once = None if first else tokenizer.tokenize_at_once(texts, truncate, prompt)
        if at_once is not None:
            return tokenizer.batch_of(at_once, prompt)

        def tokenize(start: int, stop: int) -> list[list[int]]:
            return tokenizer.tokenize(texts[start:stop], truncate, first + start, prompt)

        pieces = await self._threads.run_pieces(map(len, texts), tokenize)
        return tokenizer.batch_of(list(chain.from_iterable(pieces)), prompt)

    async def _tokenized(self, tokenizer: TextTokenizer, request: PairRequest, timings: Timings) -> TokenBatch:
        pairs, truncate = request.pairs, request.truncate

        def tokenize(start: int, stop: int) -> TokenBatch:
            return tokenizer.tokenize_pairs(pairs[start:stop], truncate, start)

        started_s = time.perf_counter()
        try:
            pieces = await self._threads.run_pieces((len(one) + len(other) for one, other in pairs), tokenize)
        except InvalidInput as error:
            raise name_pair(error) from None
        finally:
            timings.decoded(started_s, time.perf_counter())
        if len(pieces) == 1:
            return pieces[0]
        types = [piece.token_type_ids for piece in pieces if piece.token_type_ids is not None]
        ids = list(chain.from_iterable(piece.token_ids for piece in pieces))
        return TokenBatch(ids, list(chain.from_iterable(types)) if types else None)

    def _check_takes_token_ids(self) -> None:
        """Raise InvalidInput unless the model's entry accepts token ids."""
        if not self._takes_token_ids:
            raise InvalidInput(
                "text",
                "expected a string or a list of strings, got token ids, which mean other words in another tokenizer; "
                "send text (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False), or send ids of "
                '/v1/tokenize and set token_ids = "own" for this model',
            )


def _size_of(request: TokenRequest) -> int:
    """Return the size of the work, in characters."""
    if isinstance(request, DetokenizeRequest):
        return len(request.token_ids)
    if isinstance(request, SpansRequest):
        return sum(map(len, request.texts))
    return size_of_prompt(request.prompt)


def kinds_of(text: TextSpec, request: TextRequest) -> tuple[Vectors, ...]:
    """Return the kinds of vectors that a request asks for.

    Raises InvalidInput for one that the model has not, and where the response of the request's protocol cannot hold
    the model's vectors.
    """
    for kind in request.kinds:
        if kind not in text.kinds:
            known = ", ".join(text.kinds)
            raise InvalidInput("vectors", f"expected kinds out of {known}, got {kind}; name another model")
    if not request.kinds and text.vectors not in request.vectors:
        raise InvalidInput(
            "model",
            f"expected a model with one vector for each text, got one with {_OTHER_VECTORS[text.vectors]}; "
            f"post the texts to {_ROUTES[text.vectors]}, or pairs of texts to /rerank or /score",
        )
    return request.kinds or (text.vectors,)


async def _count_tokens(run: Run, token_ids: Sequence[Sequence[int]]) -> None:
    """Count the tokens that the model will read. Raises QuotaExceeded if the tenant has none left."""
    budget = run.permit.token_budget
    if budget is not None:
        await budget.start(sum(map(len, token_ids)))


async def _read_sides(
    threads: TokenizerThreads, tokenizer: LateTokenizer, texts: list[str], truncate: Truncation, num_queries: int
) -> TokenBatch:
    """Tokenize texts, of which the first `num_queries` are queries. Raises InvalidInput as TextTokenizer.tokenize."""

    def read(start: int, stop: int) -> TokenBatch:
        return tokenizer.read(texts[start:stop], truncate, min(max(num_queries - start, 0), stop - start), start)

    pieces = await threads.run_pieces(map(len, texts), read)
    attended = chain.from_iterable(piece.attended or () for piece in pieces)
    return TokenBatch(list(chain.from_iterable(piece.token_ids for piece in pieces)), attended=list(attended))


async def _rows(run: Run, submit: Submit, tokens: TokenBatch) -> Array:
    """Return the model's rows for the tokens of each text or pair: [texts, embedding size or labels]."""
    permit = run.permit
    outputs = await submit(tokens, run.priority, permit.begin, run.timings, permit.tenant)
    rows = outputs[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    return rows
