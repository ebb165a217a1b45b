"""Hold the model in a process of Ray, and run blocks of rows: one worker of Ray Data's pool, with one engine."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import psutil
import pyarrow as pa

from app.config import LoadedSettings
from app.observability.logs.logs import configure_logging
from extensions.offline.contract import RunFailed, RunModelDescription, WrongCommand
from extensions.offline.input.readers import Window
from extensions.offline.local_model import LocalModel, open_local_model
from extensions.offline.ray.blocks import WindowBlock, pack, pack_failure, unpack
from extensions.offline.ray.placement import WorkerNeeds
from extensions.offline.requests import RowSource
from extensions.offline.windows import WindowRunner
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
        self.needs = WorkerNeeds(
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
    fractions = [
        max(old.free_bytes - new.free_bytes, model_bytes if old.free_bytes > new.free_bytes else 0) / new.total_bytes
        for old, new in zip(before, after, strict=False)
        if new.kind == "cuda"
    ]
    return min(1.0, max([0.01, *fractions]))


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """The part of a job that each worker has. `description`: of the model, as the command was checked with it."""

    loaded: LoadedSettings
    name: str
    cpus: int
    source: RowSource
    prefix: str
    description: RunModelDescription


class Worker:
    """Called by as many threads as windows are run at once. Errors are results: Ray would repeat and wrap them."""

    def __init__(self, job: WorkerJob) -> None:
        self._failure = ""
        try:
            thread = ModelThread(job.loaded, job.name, job.cpus)
        except RunFailed as error:
            self._failure = str(error)
            return
        self._failure = _difference(thread.model.description, job.description)
        self._thread = thread
        self._runner = thread.make(lambda: WindowRunner(thread.model, job.source, job.prefix))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return a row of results for each row of the table."""
        return pa.concat_tables([self._run(block) for block in unpack(table)])

    def _run(self, block: WindowBlock) -> pa.Table:
        failure = block.failure or self._failure
        if failure:
            return pack_failure(block.file, block.number, failure)
        try:
            results, bad = self._thread.wait(self._runner.run(block.window, lambda _: None, block.file))
        except (RunFailed, WrongCommand) as error:
            return pack_failure(block.file, block.number, str(error))
        return pack(WindowBlock(block.file, block.number, Window(results, [], bad)))


def _difference(found: RunModelDescription, expected: RunModelDescription) -> str:
    """Return why the model of this node is another one. The times of equal files may differ between nodes."""
    for name in ("dtype", "files"):
        here, there = found.identity.get(name), expected.identity.get(name)
        if name == "files":
            here, there = ([entry[:2] for entry in files or []] for files in (here, there))
        if here != there:
            return f"MODEL: expected the same {name} on each node, got others; copy the model to each node"
    return ""
