"""Hold the model in a process of Ray: an event loop on a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import psutil

from app.config import LoadedSettings
from app.observability.logs.logs import configure_logging
from extensions.offline.local_model import LocalModel, open_local_model
from extensions.offline.ray.placement import Needs
from frameworks.core.devices import Device, SystemProbe

Result = TypeVar("Result")


class ModelThread:
    """Own the event loop in which the model runs. Its calls may come from several threads."""

    def __init__(self, loaded: LoadedSettings, name: str, cpus: int) -> None:
        """Load the model, with `cpus` threads. Raises RunFailed."""
        configure_logging("warning", "json", None)
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        threading.Thread(target=self._loop.run_forever, name="model", daemon=True).start()
        probe = SystemProbe()
        before = probe.accelerators()
        self.model: LocalModel = self.wait(self._open(with_threads(loaded, cpus), name))
        spec = self.model.slot.spec
        assert spec is not None
        on_gpu = spec.device.startswith("cuda")
        self.needs = Needs(
            psutil.Process().memory_info().rss,
            gpu_share(before, probe.accelerators(), self.model.slot.memory_bytes) if on_gpu else 0.0,
        )

    async def _open(self, loaded: LoadedSettings, name: str) -> LocalModel:
        return await self._stack.enter_async_context(open_local_model(loaded, name))

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work in the event loop of the model, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def make(self, build: Callable[[], Result]) -> Result:
        """Build an object of the event loop."""

        async def run() -> Result:
            return build()

        return self.wait(run())


def with_threads(loaded: LoadedSettings, cpus: int) -> LoadedSettings:
    """Return the settings for a worker of so many CPUs; other workers have the others."""
    performance = loaded.settings.performance.model_copy(update={"intra_op_threads": cpus})
    return replace(loaded, settings=loaded.settings.model_copy(update={"performance": performance}))


def gpu_share(before: list[Device], after: list[Device], model_bytes: int) -> float:
    """Return the share of a GPU's memory that the model takes: as measured, at least that of its weights."""
    shares = [
        max(old.free_bytes - new.free_bytes, model_bytes if old.free_bytes > new.free_bytes else 0) / new.total_bytes
        for old, new in zip(before, after, strict=False)
        if new.kind == "cuda"
    ]
    return min(1.0, max([0.01, *shares]))
