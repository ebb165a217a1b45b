"""A request's pipeline, whatever door it came in by: is it known? → admit → dispatcher → answer."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from app.inference.generation import GenerationService
from app.inference.response_cache import Question, ResponseCache
from app.inference.texts import Texts
from app.observability.metrics import GenerationMetrics
from frameworks.errors import DeadlineExceeded
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.models.version import ModelVersion
from frameworks.scheduling.admission import Permit
from frameworks.text.tokens import DetokenizeRequest, TokenAnswer, TokenizeRequest, TokenRequest
from frameworks.types import (
    DEFAULT_PRIORITY,
    Answer,
    PairRequest,
    TextRequest,
    Timings,
)

# Tokenising holds no GIL and uses every core by itself; a second thread lets a short request pass a long one.
TOKENIZER_THREADS = 2


class InferenceService:
    """Answers requests that a protocol has decoded. The caller holds the server's permit; the model's is taken here."""

    def __init__(self, response_cache: ResponseCache, generation_metrics: Callable[[str], GenerationMetrics]) -> None:
        """`generation_metrics(model)`: where the times of a model's tokens are added up."""
        self._answers_kept = response_cache
        self._tokenizing = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenize")
        self._texts = Texts(self._tokenizing)
        self._generating = GenerationService(self._tokenizing, generation_metrics)

    async def infer(
        self,
        version: ModelVersion,
        request: Question | TokenRequest,
        timings: Timings,
        permit: Permit,
        priority: int = DEFAULT_PRIORITY,
        left_s: float | None = None,
    ) -> Answer | TokenAnswer:
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
        in_pieces: bool = True,
    ) -> Generation:
        """Begins to generate text on this version, whose visitor the request is until the answer's end. Generated
        answers are not kept.

        Returns when the prompts are read. The caller iterates the answer or waits for its whole, closes it in any
        case, and finds in `timings` what it took when it has ended. `permit`, `left_s`: as for `infer`; at the deadline
        what runs is ended too. `in_pieces`: the answer will be iterated, and each piece is waited for. Raises
        InvalidInput, DeadlineExceeded, Overloaded and the other ModelUnavailable's.
        """
        return await self._generating.begin(version, request, timings, permit, priority, left_s, in_pieces)

    def close(self) -> None:
        """Ends the tokenizing threads; texts that wait for them are dropped."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    def _kept_or_asked(
        self,
        version: ModelVersion,
        request: Question | TokenRequest,
        timings: Timings,
        permit: Permit,
        priority: int,
    ) -> Awaitable[Answer | TokenAnswer]:
        if isinstance(request, TokenizeRequest | DetokenizeRequest):
            return self._texts.ask_tokenizer(version, request, timings, permit)
        if not version.model.entry.cache:
            return self._answer(version, request, timings, permit, priority)
        version.touch()
        timings.cache_hit = True

        def ask() -> Awaitable[Answer]:
            timings.cache_hit = False
            return self._answer(version, request, timings, permit, priority)

        return self._answers_kept.answer(version.model.name, version.serving_id, request, ask, permit.begin)

    async def _answer(
        self,
        version: ModelVersion,
        request: Question,
        timings: Timings,
        permit: Permit,
        priority: int,
    ) -> Answer:
        permit.queue(version.model.requests)
        if isinstance(request, TextRequest):
            return await self._texts.answer(version, request, timings, permit, priority)
        if isinstance(request, PairRequest):
            return await self._texts.score(version, request, timings, permit, priority)
        _, dispatcher = version.serving()
        result = await dispatcher.run(request, priority, permit.begin)
        timings.queue_s += result.queue_s
        timings.compute_s += result.compute_s
        return result.outputs
