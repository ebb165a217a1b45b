"""Run a dispatcher with real workers and small models that record their batches."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from frameworks.core.errors import InvalidInput, OutOfMemory
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.images.processor import ImageProcessor
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.inline import LIGHT_S
from frameworks.scheduling.batch.request import BatchCounts, Outputs
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.scheduling.merging.rows import signature_of
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import TEXT_OUTPUT, Batch, ModelSpec, TensorBatch, TokenBatch, Value
from tests.frameworks.scheduling.batch.costs import fixed_cost
from tests.support.batch_models import Gate
from tests.support.loops import HANGS_AFTER_S, task

BAD = -1
HUGE = -2
GIANT = 13
LOOP_THREAD = "MainThread"
WORKER_THREAD = "worker-m0"


class RowModel:
    """Map x [n, …] to y = 2 · x with an item for each row, and texts to [first token, number of tokens].

    It records its batches. A row that begins with BAD is invalid. A row that begins with HUGE fits only alone. A batch
    whose rows times longest row exceed `limit()` does not fit.
    """

    tokenizer: TextTokenizer | None = None
    image_processor: ImageProcessor | None = None

    def __init__(
        self, behaviour: Callable[[list[int]], None] | None = None, limit: Callable[[], float] = lambda: inf
    ) -> None:
        self.spec = ModelSpec("fake", "tensor", (), (), "cpu", "int64", memory_bytes=0)
        self.behaviour = behaviour
        self.limit = limit
        self.executed: list[list[int]] = []
        self.threads: list[str] = []
        self.answered_rows = 0
        self.empty_runs = 0
        self.users = 0
        self.is_closed = False

    def infer(self, batch: Batch) -> dict[str, Value]:
        self.users += 1
        try:
            assert self.users == 1, "two threads use the model at the same time"
            assert not self.is_closed, "the model is called after close"
            return self._infer(batch)
        finally:
            self.users -= 1

    def _infer(self, batch: Batch) -> dict[str, Value]:
        x = first_of(batch)
        self.executed.append(x)
        self.threads.append(threading.current_thread().name)
        if self.behaviour:
            self.behaviour(x)
        if BAD in x:
            raise InvalidInput("x", "not a number")
        if HUGE in x and len(x) > 1:
            raise OutOfMemory("too much at once")
        if len(x) * length_of(batch) > self.limit():
            raise OutOfMemory("too much")
        self.answered_rows += len(x)
        self.empty_runs += not x
        return self.answer(batch)

    def answer(self, batch: Batch) -> dict[str, Value]:
        if isinstance(batch, TokenBatch):
            return {TEXT_OUTPUT: np.array([[ids[0], len(ids)] for ids in batch.token_ids], np.int64)}
        assert isinstance(batch, TensorBatch)
        value = batch.inputs["x"]
        assert isinstance(value, np.ndarray)
        return {"y": 2 * value, "items": [{"first": first} for first in first_of(batch)]}

    def warm_up(self) -> None: ...

    def on_idle(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


@dataclass(slots=True)
class Harness:
    """A dispatcher with its workers and counts."""

    dispatcher: Dispatcher
    workers: list[BatchWorker]
    batch_sizes: Counter[int]
    batches_split: Counter[int]
    device: SharedDevice

    def allow_inline(self, *, most_rows: int = 10**6, width: int = 1) -> None:
        """Record that runs of up to this many rows are fast enough for the event loop."""
        assert self.dispatcher._inline is not None
        shape = signature_of(rows(0, width=width), frozenset("x")).shape
        self.dispatcher._inline.policy.learn(shape, 1, LIGHT_S / (most_rows + 0.5))

    async def run(
        self,
        batch: Batch,
        priority: int = 5,
        begin: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
    ) -> Outputs:
        return await self.dispatcher.submit(batch, priority, begin, timings)

    def send(
        self, *x: int, priority: int = 5, width: int = 1, tenant: Tenant = DEFAULT_TENANT
    ) -> "asyncio.Task[list[int]]":
        """Send a request of the rows x; return the task whose result is x again."""

        async def answer() -> list[int]:
            timings = Timings()
            result = await self.dispatcher.submit(rows(*x, width=width), priority, timings=timings, tenant=tenant)
            y, items = result["y"], result["items"]
            assert isinstance(y, np.ndarray)
            assert isinstance(items, list)
            assert y.shape == (len(x), width)
            assert (y == y[:, :1]).all()
            assert [item["first"] for item in items] == (y[:, 0] // 2).tolist()
            assert timings.queue_s >= 0
            assert timings.compute_s >= 0
            halves: list[int] = (y[:, 0] // 2).tolist()
            return halves

        return task(answer())


@asynccontextmanager
async def running_dispatcher(
    *models: RowModel,
    max_rows: int = 8,
    ageing_s: float = HANGS_AFTER_S,
    max_delay_s: float = 0.0,
    inputs: Sequence[str] = ("x",),
    runs_by_shape: bool = False,
    knows_cost: bool = True,
    device: SharedDevice | None = None,
) -> AsyncIterator[Harness]:
    """Run a dispatcher; check at the end that its queue is empty and no task is left, and close the workers.

    `knows_cost`: whether the cost model has learned that batching pays; otherwise the first batches are small.
    """
    workers = [BatchWorker(f"m{i}", model) for i, model in enumerate(models)]
    sizes: Counter[int] = Counter()
    split: Counter[int] = Counter()
    spec = replace(models[0].spec, batched_inputs=frozenset(inputs), runs_by_shape=runs_by_shape)
    limits = BatchLimits(max_rows, max_delay_s=max_delay_s)
    device = device or SharedDevice()
    dispatcher = Dispatcher("m", workers, spec, limits, ageing_s, BatchCounts(sizes, split), device)
    if knows_cost:
        dispatcher._cost = fixed_cost()
    try:
        yield Harness(dispatcher, workers, sizes, split, device)
        assert dispatcher.queue_depth == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
    finally:
        for worker in workers:
            await asyncio.wait_for(worker.close(), 60)


def rows(*x: int, width: int = 1) -> TensorBatch:
    return TensorBatch({"x": np.repeat(np.array(x, np.int64).reshape(-1, 1), width, axis=1)})


def first_of(batch: Batch) -> list[int]:
    if isinstance(batch, TokenBatch):
        return [ids[0] for ids in batch.token_ids]
    assert isinstance(batch, TensorBatch)
    value = batch.inputs["x"]
    assert isinstance(value, np.ndarray)
    firsts: list[int] = (value[:, 0] if value.ndim > 1 else value).tolist()
    return firsts


def length_of(batch: Batch) -> int:
    """Return the padded tokens as the scheduler counts them."""
    if isinstance(batch, TokenBatch):
        return max(map(len, batch.token_ids), default=1)
    assert isinstance(batch, TensorBatch)
    value = batch.inputs["x"]
    assert isinstance(value, np.ndarray)
    return int(np.prod(value.shape[1:]))


async def first_run(gate: Gate) -> None:
    """Wait until the first run has reached the gate."""
    assert await asyncio.to_thread(gate.arrived.wait, HANGS_AFTER_S)


async def answers_of(*tasks: "asyncio.Task[list[int]]") -> list[list[int]]:
    return list(await asyncio.wait_for(asyncio.gather(*tasks), 60))


async def errors_of(*tasks: "asyncio.Task[list[int]]") -> list[type[BaseException] | None]:
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    return [type(each) if isinstance(each, BaseException) else None for each in done]


def compute(seconds: float) -> None:
    """Use this much CPU time of the thread."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def ceiling_of(harness: Harness) -> int | None:
    return harness.dispatcher._ceiling.size


def giant_row(x: list[int]) -> None:
    """Raise OutOfMemory for a batch with the row GIANT, which never fits."""
    if GIANT in x:
        raise OutOfMemory("the row never fits")
