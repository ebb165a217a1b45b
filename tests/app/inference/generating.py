"""Run the service over a manager with the generating model "m"."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.auth.quotas import LimitedPermit, TenantLimits
from app.inference.context import InferenceService, RunContext
from app.inference.response_cache import ResponseCache
from app.observability.metrics import Observer
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.generation.types import (
    GenerateAnswer,
    GenerateRequest,
    Generation,
    Prompt,
    Sampling,
    Stopping,
    TextDelta,
)
from frameworks.manager import MLFrameworkManager
from frameworks.scheduling.admission import Permit, RequestLimit
from memory.result_cache import ResultCache
from tests.support.loops import soon
from tests.support.managing import opened, permit, serving
from tests.support.step_models import EchoModel, EchoRegistry


@dataclass
class Harness:
    """A service and its parts. `models`: every instance of the model, in order of their loads. `limits`: of the tenant
    of all requests; None: they have no tenant.
    """

    manager: MLFrameworkManager
    service: InferenceService
    observer: Observer
    models: list[EchoModel]
    last_timings: Timings = field(default_factory=Timings)
    limits: TenantLimits | None = None

    @asynccontextmanager
    async def begin(
        self, request: GenerateRequest, left_s: float | None = None, priority: int = 5, in_pieces: bool = True
    ) -> AsyncIterator[Generation]:
        """Generate as an endpoint does: select the model, hold a permit, close the generation."""
        limited: Permit | None = None
        if self.limits is not None:
            limited = LimitedPermit(RequestLimit("the server", None, None), Tenant("t"), self.limits)
        with permit(limited) as held:
            version = await opened(self.manager, held)
            self.last_timings = Timings()
            context = RunContext(held, self.last_timings, priority)
            context.model_version = version
            generation = await self.service.generate(context, request, left_s, in_pieces)
            try:
                yield generation
            finally:
                generation.close()

    async def collect(self, request: GenerateRequest, left_s: float | None = None) -> GenerateAnswer:
        async with self.begin(request, left_s, in_pieces=False) as generation:
            return await generation.collect()

    async def pieces(self, request: GenerateRequest, left_s: float | None = None) -> list[TextDelta]:
        async with self.begin(request, left_s) as generation:
            return [piece async for piece in generation]


@asynccontextmanager
async def generating(
    behaviour: Callable[[list[str]], None] | None = None, registry: EchoRegistry | None = None, **settings: Any
) -> AsyncIterator[Harness]:
    """Check at the end that the queue is empty and the model holds nothing. `settings`: further keys of its entry."""
    registry = registry or EchoRegistry(behaviour)
    observer = Observer("none", 1000)
    service = InferenceService(ResponseCache(ResultCache(0, None), Counter(), Counter()), observer.generation_metrics)
    async with serving(registry, **settings) as manager:
        yield Harness(manager, service, observer, registry.made)
        await soon(lambda: manager.residency.is_idle)
        await soon(lambda: not any(model.has_work and not model.is_closed for model in registry.made))
        manager.residency.check_integrity()
        requests = manager.slot("m").requests
        assert (requests.inflight, requests.waiting) == (0, 0)


async def read(generation: Generation, texts: list[str]) -> None:
    """Add the pieces to `texts` until the end or an error."""
    async for piece in generation:
        texts.append(piece.text)  # noqa: PERF401 - pieces before an error count


def generate_request(
    *prompts: Prompt, n: int = 1, max_tokens: int | None = 5, stop: tuple[str, ...] = (), **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(prompts, Sampling(**sampling), Stopping(max_tokens, strings=stop), num_choices=n)
