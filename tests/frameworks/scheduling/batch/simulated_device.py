"""Run dispatchers on a device whose seconds come from a law: no clock is read, and nothing is computed."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from frameworks.core.tenants import Tenant
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.batch.worker import AllCancelled, BatchResult, BatchWorker
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.types import TEXT_OUTPUT, Batch, ModelSpec, TextSpec, TokenBatch
from tests.frameworks.scheduling.batch.dispatching import RowModel
from tests.support.loops import settle, task

Law = Callable[[int, int], float]
"""The seconds of this many rows padded to a length."""


def minilm_law(rows: int, length: int) -> float:
    """As measured with MiniLM on one core."""
    tokens = rows * length
    return (1.6 + tokens * (0.225 + 2e-4 * length + 1.36e-5 * tokens)) / 1000


@dataclass(slots=True, eq=False)
class _Job:
    make_batch: Callable[[], Batch]
    future: "asyncio.Future[BatchResult]"


class _Worker:
    """Has the interface of a BatchWorker that the dispatcher uses."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self._device = device
        self.model = RowModel()
        self.is_dead = False
        self.on_death: Callable[[], None] | None = None

    def submit(self, make_batch: Callable[[], Batch]) -> "asyncio.Future[BatchResult]":
        job = _Job(make_batch, asyncio.get_running_loop().create_future())
        self._device.jobs.append(job)
        return job.future


class SimulatedDevice:
    """Runs the batches of all workers one after the other, in the order in which they are handed over."""

    def __init__(self, law: Law = minilm_law) -> None:
        self._law = law
        self.shared = SharedDevice()
        self.jobs: deque[_Job] = deque()

    def dispatcher(self, *, workers: int = 1, max_rows: int = 32) -> tuple[Dispatcher, BatchCounts]:
        """Return the dispatcher of one more model on this device, and its counts."""
        spec = ModelSpec("fake", "embed", (), (), "cpu", "float32", memory_bytes=0, text=TextSpec(512))
        counts = BatchCounts()
        all_workers = cast("Sequence[BatchWorker]", [_Worker(self) for _ in range(workers)])
        return Dispatcher("m", all_workers, spec, BatchLimits(max_rows), 1.0, counts, self.shared), counts

    async def run_batch(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> list[int]:
        """Run the next batch and return the first token of each of its texts; none if all callers were cancelled.

        `meanwhile`: happens as it runs.
        """
        await settle()
        job = self.jobs.popleft()
        try:
            batch = job.make_batch()
        except AllCancelled as error:
            job.future.set_exception(error)
            await settle()
            return []
        assert isinstance(batch, TokenBatch)
        if meanwhile is not None:
            await meanwhile()
        seconds = self._law(batch.rows, max(map(len, batch.token_ids)))
        outputs = {TEXT_OUTPUT: np.zeros((batch.rows, 1), np.float32)}
        job.future.set_result(BatchResult(dict(outputs), 0.0, seconds))
        await settle()
        return [ids[0] for ids in batch.token_ids]


class Flood:
    """Callers of one tenant that each send a text, and the next one when it is answered."""

    def __init__(
        self, dispatcher: Dispatcher, tenant: Tenant, callers: int, lengths: Iterator[int], mark: int = 0
    ) -> None:
        """`mark`: the first token of each text."""
        self._dispatcher = dispatcher
        self._tenant = tenant
        self._lengths = lengths
        self._mark = mark
        self.answers = 0
        self._tasks = [task(self._call()) for _ in range(callers)]

    async def _call(self) -> None:
        while True:
            await ask(self._dispatcher, self._tenant, next(self._lengths), self._mark)
            self.answers += 1

    async def stop(self) -> None:
        """Cancel all callers."""
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def ask(dispatcher: Dispatcher, tenant: Tenant, length: int, mark: int = 0) -> None:
    """Send one text and wait for its answer."""
    await dispatcher.submit(TokenBatch([[mark] * length]), tenant=tenant)


def mixed_lengths(seed: int, low: int = 4, high: int = 160) -> Iterator[int]:
    """Yield lengths of texts without end."""
    rng = random.Random(seed)
    return (rng.randint(low, high) for _ in itertools.count())
