"""Texts between a decoded request and its answer: texts → tokens → a model's rows → embeddings, labels, scores."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

import numpy as np

from app.inference.scoring import cosines, in_pairs, paired, probabilities
from frameworks.errors import InvalidInput
from frameworks.models.version import ModelVersion
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.text.tokenizer import TextTokenizer, normalize_rows, scores
from frameworks.text.tokens import TokenAnswer, TokenRequest, answer_token_request
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

# From here on the arithmetic of an answer would hold the loop for about a millisecond, and is done in a thread.
_MANY_NUMBERS = 64 * 1024
_NUMBERS_PER_PAIR = 64  # as much work
_NO_ROWS = np.empty((0, 0), dtype=np.float32)


class Texts:
    """Owned by the event loop. What it took is added to the request's timings; `permit`: as for the service."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        """`threads`: in which tokens are made of long texts, and answers of many numbers."""
        self._threads = threads

    async def answer(
        self, version: ModelVersion, request: TextRequest, timings: Timings, permit: Permit, priority: int
    ) -> EmbedAnswer | ClassifyAnswer:
        model, dispatcher = version.serving()
        tokenizer, text = model.tokenizer, model.spec.text
        if tokenizer is None or text is None:
            raise InvalidInput("text", "this model takes no text")
        if not request.texts:
            return ClassifyAnswer([]) if model.spec.task == "classify" else EmbedAnswer(_NO_ROWS, tokens=0)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        token_ids = tokenizer.tokenize_at_once(request.texts, request.truncate)
        if token_ids is None:
            token_ids = await loop.run_in_executor(self._threads, tokenizer.tokenize, request.texts, request.truncate)
        timings.decode_s += loop.time() - started_s
        rows = await _rows(dispatcher, TokenBatch(token_ids), timings, permit, priority)
        return await self._worked_out(rows.size, _finished, model.spec.task, text, request, rows, token_ids)

    async def score(
        self, version: ModelVersion, request: PairRequest, timings: Timings, permit: Permit, priority: int
    ) -> ScoreAnswer:
        """By a cross-encoder, which reads a pair at once, or by the cosine of what a model embeds of each text.

        Raises InvalidInput, whose field is a PAIR_FIELD of app/inference/scoring.py.
        """
        model, dispatcher = version.serving()
        if not request.pairs:
            return ScoreAnswer([], tokens=0)
        if model.spec.task == "classify":
            assert model.tokenizer is not None
            tokens = await self._tokenized(model.tokenizer, request, timings)
            rows = await _rows(dispatcher, tokens, timings, permit, priority)
            return await self._worked_out(rows.size, probabilities, rows, tokens)
        pairs = await self._worked_out(_NUMBERS_PER_PAIR * len(request.pairs), paired, request)
        texts = TextRequest(pairs.texts, normalize=True, truncate=request.truncate)
        try:
            embedded = await self.answer(version, texts, timings, permit, priority)
        except InvalidInput as error:
            raise pairs.in_its_pair(error) from None
        assert isinstance(embedded, EmbedAnswer)
        return await self._worked_out(embedded.embeddings.size, cosines, pairs, embedded)

    async def ask_tokenizer(
        self, version: ModelVersion, request: TokenRequest, timings: Timings, permit: Permit
    ) -> TokenAnswer:
        """Waits for no turn: the model itself is not asked."""
        permit.queue(version.model.requests)
        model = version.model_in_service()
        permit.begin()
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            return await loop.run_in_executor(
                self._threads, answer_token_request, model.tokenizer, model.spec.max_tokens, request
            )
        finally:
            timings.compute_s += loop.time() - started_s

    async def _tokenized(self, tokenizer: TextTokenizer, request: PairRequest, timings: Timings) -> TokenBatch:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            return await loop.run_in_executor(self._threads, tokenizer.tokenize_pairs, request.pairs, request.truncate)
        except InvalidInput as error:
            raise in_pairs(error) from None
        finally:
            timings.decode_s += loop.time() - started_s

    async def _worked_out(self, numbers: int, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """What comes of the arguments, worked out in a thread where they are many numbers."""
        if numbers < _MANY_NUMBERS:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


async def _rows(dispatcher: Dispatcher, tokens: TokenBatch, timings: Timings, permit: Permit, priority: int) -> Array:
    """What a text model says of the tokens of each text, or pair."""
    result = await dispatcher.run(tokens, priority, permit.begin)
    timings.queue_s += result.queue_s
    timings.compute_s += result.compute_s
    rows = result.outputs[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    return rows


def _finished(
    task: Task, text: TextSpec, request: TextRequest, rows: Array, token_ids: list[list[int]]
) -> EmbedAnswer | ClassifyAnswer:
    """The last arithmetic, on the model's rows [texts, embedding size or labels]."""
    if task == "classify":
        return ClassifyAnswer(_ranked(scores(rows, text.multi_label), text.labels, request.top_k))
    normalize = text.normalize if request.normalize is None else request.normalize
    rows = rows[:, : request.dimensions]
    return EmbedAnswer(normalize_rows(rows) if normalize else rows, tokens=sum(map(len, token_ids)))


def _ranked(probabilities: Array, labels: tuple[str, ...], top_k: int | None) -> list[list[tuple[str, float]]]:
    """Per text its (label, score) pairs by falling score; equal scores in the order of the labels."""
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    return [[(labels[i], float(row[i])) for i in best] for row, best in zip(probabilities, order.tolist(), strict=True)]
