"""Run a decoded request on a version of a model: response cache, queue, batches or generated text."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from app.inference.context import RunContext
from app.inference.generation import GenerationService
from app.inference.response_cache import CacheableRequest, ResponseCache
from app.inference.texts import TextService
from app.inference.tokenizer_threads import TokenizerThreads
from app.observability.tallies import GenerationMetrics
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.text.tokens import DetokenizeRequest, TokenAnswer, TokenizeRequest, TokenRequest
from frameworks.types import Answer, PairRequest, TensorBatch, TextRequest

# A model compiles one constraint at a time, for up to seconds; the other threads are for constraints that are cached.
CONSTRAINT_THREADS = 4


class InferenceService:
    """Answer decoded requests. The caller holds the server's permit; the model's place is taken here."""

    def __init__(
        self, response_cache: ResponseCache, generation_metrics: Callable[[str, str], GenerationMetrics]
    ) -> None:
        """`generation_metrics(model, tenant)`: where the token times of a model and tenant are recorded."""
        self._response_cache = response_cache
        self._tokenizer_threads = TokenizerThreads()
        self._texts = TextService(self._tokenizer_threads)
        self._constraint_threads = ThreadPoolExecutor(CONSTRAINT_THREADS, thread_name_prefix="constrain")
        self._generation = GenerationService(self._tokenizer_threads, self._constraint_threads, generation_metrics)

    def infer(self, context: RunContext, request: CacheableRequest | TokenRequest) -> Awaitable[Answer | TokenAnswer]:
        """Run a request on the context's version. The permit holds a reference to that version.

        A request whose response is cached never waits. If the awaitable is cancelled, what has not begun never runs.
        Raises Overloaded and the other ModelUnavailable errors, InvalidInput, OutOfMemory.
        """
        version, timings = context.version, context.timings
        is_cached = version.model.entry.cache
        if type(request) is TensorBatch and not is_cached:
            permit = context.permit
            permit.queue(version.model.requests)
            return version.serving().dispatcher.submit(request, context.priority, permit.begin, timings, permit.tenant)
        if isinstance(request, TokenizeRequest | DetokenizeRequest):
            return self._texts.answer_token_request(context, request)
        if not is_cached:
            return self._run(context, request)
        version.touch()
        timings.cache_hit = True

        def run() -> Awaitable[Answer]:
            timings.cache_hit = False
            return self._run(context, request)

        permit = context.permit
        return self._response_cache.get_or_run(
            permit.tenant, version.model.name, version.serving_id, request, run, permit.begin
        )

    async def generate(
        self, context: RunContext, request: GenerateRequest, left_s: float | None = None, in_pieces: bool = True
    ) -> Generation:
        """Begin to generate text. Generated text is not cached.

        Returns when the prompts are tokenized. The caller iterates or collects the generation, and closes it in
        any case; the context's timings are complete when it has ended. `left_s`: seconds until the deadline, at
        which running sequences end too. `in_pieces`: the generation will be iterated, so each piece is delivered at
        once. Raises InvalidInput, DeadlineExceeded, Overloaded and the other ModelUnavailable errors.
        """
        return await self._generation.begin(context, request, left_s, in_pieces)

    def close(self) -> None:
        """End the threads; queued texts and constraints are dropped."""
        self._tokenizer_threads.close()
        self._constraint_threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, context: RunContext, request: CacheableRequest) -> Awaitable[Answer]:
        permit = context.permit
        permit.queue(context.version.model.requests)
        if isinstance(request, TextRequest):
            return self._texts.answer(context, request)
        if isinstance(request, PairRequest):
            return self._texts.score(context, request)
        _, dispatcher = context.version.serving()
        return dispatcher.submit(request, context.priority, permit.begin, context.timings, permit.tenant)
