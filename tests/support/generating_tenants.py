"""Generate texts of several tenants with a real language model, in this process and without a server."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

from app.inference.context import InferenceService, RunContext
from app.inference.response_cache import ResponseCache
from app.observability.metrics import Observer
from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.generation.types import GenerateRequest, Sampling, Stopping
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.pytorch.registry import TorchRegistry
from frameworks.scheduling.admission import Permit, RequestLimit
from memory.result_cache import ResultCache
from tests.frameworks.models.loading import NO_COPIES
from tests.support.fake_probe import GIB, FakeProbe
from tests.support.loops import HANGS_AFTER_S
from tests.support.managing import opened, permit

TextLengths = tuple[int, int]
"""Tokens of a prompt, and of its text."""


class TenantsHarness:
    """The model "m" and its callers. `tokens`: generated tokens that were read, by tenant."""

    def __init__(self, manager: MLFrameworkManager, service: InferenceService) -> None:
        self._manager = manager
        self._service = service
        self._limit = RequestLimit("the server", None, None)
        self._numbers = count()
        self.tokens: Counter[str] = Counter()

    async def generate(self, tenant: Tenant, prompt: tuple[int, ...], max_tokens: int) -> float:
        """Read one text as a stream, and return the seconds until its first token."""
        started_s = time.perf_counter()
        first_s = 0.0
        request = GenerateRequest((prompt,), Sampling(temperature=0), Stopping(max_tokens, ignore_eos=True))
        with permit(Permit(self._limit, tenant)) as held:
            version = await opened(self._manager, held)
            context = RunContext(held, Timings())
            context.model_version = version
            generation = await self._service.generate(context, request, None, in_pieces=True)
            seen = 0
            try:
                async for _ in generation:
                    first_s = first_s or time.perf_counter() - started_s
                    self.tokens[tenant.name] += generation.usage.tokens_generated - seen
                    seen = generation.usage.tokens_generated
            finally:
                generation.close()
        return first_s

    def delivered_tokens(self) -> dict[str, int]:
        """Return the generated tokens by tenant. Those of a step count at once, whether they were read or not."""
        return {name: tokens.generated for name, tokens in self._manager.slot("m").generated.tenants.items()}

    def step_seconds(self) -> tuple[int, float]:
        """Return the number of the model's steps, and their seconds."""
        steps = self._manager.slot("m").generated.steps
        return steps.sizes.total(), sum(steps.seconds.values())

    async def flood(
        self, tenant: Tenant, callers: int, lengths: Iterable[TextLengths], until: Callable[[], bool]
    ) -> None:
        """Generate one text after another for each caller, until the condition holds."""
        texts = cycle(lengths)

        async def call() -> None:
            while not until():
                prompt_tokens, text_tokens = next(texts)
                await self.generate(tenant, self.prompt(prompt_tokens), text_tokens)

        await asyncio.gather(*(call() for _ in range(callers)))

    def prompt(self, num_tokens: int) -> tuple[int, ...]:
        """Return token ids. The prefixes of two prompts differ, so that none is cached."""
        number = next(self._numbers)
        return tuple(300 + (number + (1 + number // 1500 % 1499) * i) % 1500 for i in range(num_tokens))


@asynccontextmanager
async def serving_tenants(folder: Path, threads: int = 1, **entry: Any) -> AsyncIterator[TenantsHarness]:
    """Load the model in `folder`. `threads`: of its steps. `entry`: further keys of its entry."""
    performance = PerformanceSettings(intra_op_threads=threads)
    service = InferenceService(
        ResponseCache(ResultCache(0, None), Counter(), Counter()), Observer("none", 1000).generation_metrics
    )
    registry = TorchRegistry(performance, GIB, NO_COPIES, True)
    manager = MLFrameworkManager(
        Loader({"pytorch": lambda: registry}, DeviceManager(FakeProbe())),
        performance,
        SchedulingSettings(min_residency_s=0.0),
        HANGS_AFTER_S,
        None,
    )
    async with manager:
        settings = TorchModelEntry(name="m", path=folder, **{"dtype": "f32"} | entry)
        manager.register("pytorch", settings, folder)
        await manager.load("m")
        yield TenantsHarness(manager, service)
