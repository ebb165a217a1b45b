"""A request's journey, whatever door it came in by: is it known? → admit → dispatcher → answer."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from app.answers_kept import AnswersKept
from app.generating import Generating
from app.observe import GenerationMetrics
from frameworks.errors import DeadlineExceeded, InvalidInput
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.runtime import BatchModel
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.dispatcher import Dispatcher
from frameworks.text import normalize_rows, scores
from frameworks.types import (
    DEFAULT_PRIORITY,
    TEXT_OUTPUT,
    Answer,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    Task,
    TensorBatch,
    TextRequest,
    TextSpec,
    Timings,
    TokenBatch,
)
from frameworks.version import ModelVersion

# Tokenising holds no GIL and uses every core by itself; a second thread lets a short request pass a long one.
TOKENIZER_THREADS = 2
# From here on the arithmetic of an answer would hold the loop for about a millisecond, and is done in a thread.
_MANY_NUMBERS = 64 * 1024
_NO_ROWS = np.empty((0, 0), dtype=np.float32)


class InferenceService:
    """Answers requests that a protocol has decoded. The caller holds the server's permit; the model's is taken here."""

    def __init__(self, answers_kept: AnswersKept, generation_metrics: Callable[[str], GenerationMetrics]) -> None:
        """`generation_metrics(model)`: where the times of a model's tokens are added up."""
        self._answers_kept = answers_kept
        self._tokenizing = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenize")
        self._generating = Generating(self._tokenizing, generation_metrics)

    async def infer(
        self,
        version: ModelVersion,
        request: TensorBatch | TextRequest,
        timings: Timings,
        permit: Permit,
        priority: int = DEFAULT_PRIORITY,
        left_s: float | None = None,
    ) -> Answer:
        """Runs the request on this version, whose visitor it is, and adds to `timings` what it took.

        `permit` is told when the request waits for the model, and when it waits no more; one whose answer is known
        never waits. `left_s`: seconds until the deadline; None: there is none. Raises DeadlineExceeded at the deadline,
        what has not begun by then is never run; Overloaded and the other ModelUnavailable's, InvalidInput, OutOfMemory.
        """
        if left_s is None:
            return await self._kept_or_asked(version, request, timings, permit, priority)
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                return await self._kept_or_asked(version, request, timings, permit, priority)
        except TimeoutError:
            raise DeadlineExceeded(
                f'model "{version.model.name}" did not answer within timeout_ms; '
                "allow more time or ask for less at once"
            ) from None

    async def generate(
        self,
        version: ModelVersion,
        request: GenerateRequest,
        timings: Timings,
        permit: Permit,
        priority: int = DEFAULT_PRIORITY,
        left_s: float | None = None,
    ) -> Generation:
        """Begins to generate text on this version, whose visitor the request is until the answer's end. Generated
        answers are not kept.

        Returns when the prompts are read. The caller iterates the answer or waits for its whole, closes it in any
        case, and finds in `timings` what it took when it has ended. `permit`, `left_s`: as for `infer`; at the deadline
        what runs is ended too. Raises InvalidInput, DeadlineExceeded, Overloaded and the other ModelUnavailable's.
        """
        return await self._generating.begin(version, request, timings, permit, priority, left_s)

    def close(self) -> None:
        """Ends the tokenizing threads; texts that wait for them are dropped."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    def _kept_or_asked(
        self,
        version: ModelVersion,
        request: TensorBatch | TextRequest,
        timings: Timings,
        permit: Permit,
        priority: int,
    ) -> Awaitable[Answer]:
        if not version.model.entry.cache:
            return self._answer(version, request, timings, permit, priority)
        version.touch()
        return self._answers_kept.answer(
            version.model.name,
            version.serving_id,
            request,
            lambda: self._answer(version, request, timings, permit, priority),
            permit.begin,
        )

    async def _answer(
        self,
        version: ModelVersion,
        request: TensorBatch | TextRequest,
        timings: Timings,
        permit: Permit,
        priority: int,
    ) -> Answer:
        permit.queue(version.model.requests)
        model, dispatcher = version.serving()
        if isinstance(request, TextRequest):
            return await self._answer_texts(model, dispatcher, request, timings, permit, priority)
        result = await dispatcher.run(request, priority, permit.begin)
        timings.queue_s += result.queue_s
        timings.compute_s += result.compute_s
        return result.outputs

    async def _answer_texts(
        self,
        model: BatchModel,
        dispatcher: Dispatcher,
        request: TextRequest,
        timings: Timings,
        permit: Permit,
        priority: int,
    ) -> EmbedAnswer | ClassifyAnswer:
        tokenizer, text = model.tokenizer, model.spec.text
        if tokenizer is None or text is None:
            raise InvalidInput("text", "this model takes no text")
        if not request.texts:
            return ClassifyAnswer([]) if model.spec.task == "classify" else EmbedAnswer(_NO_ROWS, tokens=0)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        token_ids = tokenizer.tokenize_at_once(request.texts, request.truncate)
        if token_ids is None:
            token_ids = await loop.run_in_executor(
                self._tokenizing, tokenizer.tokenize, request.texts, request.truncate
            )
        timings.decode_s += loop.time() - started_s
        result = await dispatcher.run(TokenBatch(token_ids), priority, permit.begin)
        timings.queue_s += result.queue_s
        timings.compute_s += result.compute_s
        rows = result.outputs[TEXT_OUTPUT]
        assert isinstance(rows, np.ndarray)
        if rows.size < _MANY_NUMBERS:
            return _finished(model.spec.task, text, request, rows, token_ids)
        return await loop.run_in_executor(self._tokenizing, _finished, model.spec.task, text, request, rows, token_ids)


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
