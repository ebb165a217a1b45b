"""Run a decoded request on a version of a model: response cache, queue, batches or generated text."""

from collections.abc import Awaitable, Callable
from typing import cast

from app.inference.context import RunContext
from app.inference.response_cache import CacheableRequest, Responses
from frameworks.engine.contract import TokenTimes
from frameworks.engine.generation_limits import check_request
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.text.tokens import TokenAnswer, TokenRequest
from frameworks.types import Answer, TensorBatch


class InferenceService:
    """Answer decoded requests. The caller holds the server's permit; the model's place is taken here."""

    def __init__(self, response_cache: Responses, token_times: Callable[[str, str], TokenTimes]) -> None:
        """`token_times(model, tenant)`: where the times of a model's tokens are recorded for a tenant."""
        self._response_cache = response_cache
        self._token_times = token_times

    def infer(self, context: RunContext, request: CacheableRequest | TokenRequest) -> Awaitable[Answer | TokenAnswer]:
        """Run a request on the context's version. The permit holds a reference to that version.

        A request whose response is cached never waits. If the awaitable is cancelled, what has not begun never runs.
        Raises Overloaded and the other ModelUnavailable errors, InvalidInput, OutOfMemory.
        """
        version, timings = context.version, context.timings
        is_cached = version.model.entry.cache
        if type(request) is TensorBatch and not is_cached and not version.model.is_composite:
            permit = context.permit
            permit.queue(version.model.requests)
            return version.engine().submit(request, context.priority, permit.begin, timings, permit.tenant)
        if not is_cached or isinstance(request, TokenRequest):
            return self._run(context, request)
        version.touch()
        timings.cache_hit = True

        def run() -> Awaitable[Answer]:
            timings.cache_hit = False
            return cast("Awaitable[Answer]", self._run(context, request))

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
        check_request(request)
        version, permit = context.version, context.permit
        permit.queue_sequences(version.model.requests, len(request.prompts) * request.num_choices)
        times = self._token_times(version.model.name, permit.tenant.name)
        return await version.engine().generate(context, request, times, left_s, in_pieces)

    def _run(self, context: RunContext, request: CacheableRequest | TokenRequest) -> Awaitable[Answer | TokenAnswer]:
        context.permit.queue(context.version.model.requests)
        return context.version.engine().answer(context, request)
