"""Text requests: texts to tokens, tokens to rows of a model, rows to embeddings, labels or scores."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar, TypeVarTuple

import numpy as np

from app.inference.context import RunContext
from app.inference.scoring import cosines, distinct_texts, name_pair, probabilities
from app.inference.tokenizer_threads import TokenizerThreads, size_of_prompt
from frameworks.errors import InvalidInput
from frameworks.runtime import ModelEntry
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.text.tokenizer import TextTokenizer, normalize_rows, scores
from frameworks.text.tokens import DetokenizeRequest, TokenAnswer, TokenRequest, answer_token_request
from frameworks.types import (
    TEXT_OUTPUT,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    PairRequest,
    ScoreAnswer,
    Task,
    TextRequest,
    TextSpec,
    Timings,
    TokenBatch,
)

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

# From this size on the arithmetic of a response would block the loop for about a millisecond: it runs on a thread.
_MANY_NUMBERS = 64 * 1024
_NUMBERS_PER_PAIR = 64  # as much work
_NUMBERS_PER_CHARACTER = 256  # as much work as the tokenizing of one
_NO_ROWS = np.empty((0, 0), dtype=np.float32)


class TextService:
    """Owned by the event loop. Adds to the timings of the context; raises as InferenceService.infer."""

    def __init__(self, threads: TokenizerThreads) -> None:
        """`threads`: tokenize long texts, and compute responses of many numbers."""
        self._threads = threads

    async def answer(self, context: RunContext, request: TextRequest) -> EmbedAnswer | ClassifyAnswer:
        model, dispatcher = context.version.serving()
        tokenizer, text = model.tokenizer, model.spec.text
        if tokenizer is None or text is None:
            raise InvalidInput("text", "expected a model that reads text, got one that reads tensors; send tensors")
        if not request.texts and request.token_ids is None:
            return ClassifyAnswer([]) if model.spec.task == "classify" else EmbedAnswer(_NO_ROWS, tokens=0)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        token_ids: list[list[int]] | None
        if request.token_ids is not None:
            _check_takes_token_ids(context.version.model.entry)
            size = sum(map(len, request.token_ids))
            token_ids = await self._threads.run(size, tokenizer.read_ids, request.token_ids, request.truncate)
        else:
            token_ids = tokenizer.tokenize_at_once(request.texts, request.truncate)
        if token_ids is None:
            token_ids = await self._tokenize_pieces(tokenizer, request)
        context.timings.decode_s += loop.time() - started_s
        _count_tokens(context, token_ids)
        rows = await _rows(context, dispatcher, TokenBatch(token_ids))
        return await self._compute(rows.size, _finished, model.spec.task, text, request, rows, token_ids)

    async def score(self, context: RunContext, request: PairRequest) -> ScoreAnswer:
        """Score pairs by a cross-encoder, which reads both texts at once, or by the cosine of two embeddings.

        Raises InvalidInput; its field is a PAIR_FIELD of app/inference/scoring.py.
        """
        model, dispatcher = context.version.serving()
        if not request.pairs:
            return ScoreAnswer([], tokens=0)
        if model.spec.task == "classify":
            assert model.tokenizer is not None
            tokens = await self._tokenized(model.tokenizer, request, context.timings)
            _count_tokens(context, tokens.token_ids)
            rows = await _rows(context, dispatcher, tokens)
            return await self._compute(rows.size, probabilities, rows, tokens)
        pairs = await self._compute(_NUMBERS_PER_PAIR * len(request.pairs), distinct_texts, request)
        texts = TextRequest(pairs.texts, normalize=True, truncate=request.truncate)
        try:
            embedded = await self.answer(context, texts)
        except InvalidInput as error:
            raise pairs.name_pair(error) from None
        assert isinstance(embedded, EmbedAnswer)
        return await self._compute(embedded.embeddings.size, cosines, pairs, embedded)

    async def answer_token_request(self, context: RunContext, request: TokenRequest) -> TokenAnswer:
        """Tokenize or detokenize. The request does not wait in the queue, as the model does not run."""
        context.permit.queue(context.version.model.requests)
        model = context.version.loaded_model()
        context.permit.begin()
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            return await self._threads.run(
                _size_of(request), answer_token_request, model.tokenizer, model.spec.max_tokens, request
            )
        finally:
            context.timings.compute_s += loop.time() - started_s

    async def _tokenize_pieces(self, tokenizer: TextTokenizer, request: TextRequest) -> list[list[int]]:
        texts, truncate = request.texts, request.truncate

        def tokenize(start: int, stop: int) -> list[list[int]]:
            return tokenizer.tokenize(texts[start:stop], truncate, start)

        pieces = await self._threads.run_pieces(map(len, texts), tokenize)
        return pieces[0] if len(pieces) == 1 else list(chain.from_iterable(pieces))

    async def _tokenized(self, tokenizer: TextTokenizer, request: PairRequest, timings: Timings) -> TokenBatch:
        pairs, truncate = request.pairs, request.truncate

        def tokenize(start: int, stop: int) -> TokenBatch:
            return tokenizer.tokenize_pairs(pairs[start:stop], truncate, start)

        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            pieces = await self._threads.run_pieces((len(one) + len(other) for one, other in pairs), tokenize)
        except InvalidInput as error:
            raise name_pair(error) from None
        finally:
            timings.decode_s += loop.time() - started_s
        if len(pieces) == 1:
            return pieces[0]
        types = [piece.token_type_ids for piece in pieces if piece.token_type_ids is not None]
        ids = list(chain.from_iterable(piece.token_ids for piece in pieces))
        return TokenBatch(ids, list(chain.from_iterable(types)) if types else None)

    async def _compute(self, numbers: int, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return `work(*arguments)`, computed on a thread if it handles many numbers."""
        if numbers < _MANY_NUMBERS:
            return work(*arguments)
        return await self._threads.run(numbers / _NUMBERS_PER_CHARACTER, work, *arguments)


def _size_of(request: TokenRequest) -> int:
    """Return the size of the work, in characters."""
    if isinstance(request, DetokenizeRequest):
        return len(request.token_ids)
    return size_of_prompt(request.prompt)


def _count_tokens(context: RunContext, token_ids: Sequence[Sequence[int]]) -> None:
    """Count the tokens that the model will read. Raises QuotaExceeded if the tenant has none left."""
    budget = context.permit.token_budget
    if budget is not None:
        budget.start(sum(map(len, token_ids)))


def _check_takes_token_ids(entry: ModelEntry) -> None:
    """Raise InvalidInput unless the model's entry accepts token ids."""
    if entry.token_ids is None:
        raise InvalidInput(
            "text",
            "expected a string or a list of strings, got token ids, which mean other words in another tokenizer; send "
            "text (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False), or send ids of /v1/tokenize and "
            'set token_ids = "own" for this model',
        )


async def _rows(context: RunContext, dispatcher: Dispatcher, tokens: TokenBatch) -> Array:
    """Return the model's rows for the tokens of each text or pair: [texts, embedding size or labels]."""
    permit = context.permit
    outputs = await dispatcher.submit(tokens, context.priority, permit.begin, context.timings, permit.tenant)
    rows = outputs[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    return rows


def _finished(
    task: Task, text: TextSpec, request: TextRequest, rows: Array, token_ids: list[list[int]]
) -> EmbedAnswer | ClassifyAnswer:
    """Compute the answer from the model's rows [texts, embedding size or labels]."""
    if task == "classify":
        return ClassifyAnswer(_ranked(scores(rows, text.multi_label), text.labels, request.top_k))
    normalize = text.normalize if request.normalize is None else request.normalize
    rows = rows[:, : request.dimensions]
    return EmbedAnswer(normalize_rows(rows) if normalize else rows, tokens=sum(map(len, token_ids)))


def _ranked(probabilities: Array, labels: tuple[str, ...], top_k: int | None) -> list[list[tuple[str, float]]]:
    """Return (label, score) pairs per text by falling score; equal scores in the order of the labels."""
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    return [[(labels[i], float(row[i])) for i in best] for row, best in zip(probabilities, order.tolist(), strict=True)]
