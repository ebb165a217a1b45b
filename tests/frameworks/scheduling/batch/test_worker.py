"""One model on one thread: order, cancellations, failures, and a dead thread."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, InvalidInput, ModelFailed, OutOfMemory
from frameworks.scheduling.batch import worker as batch_worker
from frameworks.scheduling.batch.worker import BatchResult, BatchWorker, CpuWait
from frameworks.types import Array, TensorBatch
from tests.frameworks.scheduling.batch.dispatching import RowModel, first_run, running_dispatcher
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task, worker_threads_end


@asynccontextmanager
async def running_worker(model: DoublingModel) -> AsyncIterator[BatchWorker]:
    worker = BatchWorker("m", model)
    try:
        yield worker
    finally:
        await asyncio.wait_for(worker.close(), 60)


async def run(worker: BatchWorker, *x: object) -> BatchResult:
    """Run a batch in the worker."""
    return await worker.submit(lambda: numbers(*x))


@in_loop
async def test_batches_run_in_order_on_one_thread() -> None:
    model = DoublingModel()
    async with running_worker(model) as worker:
        results = await asyncio.gather(*(run(worker, i) for i in range(50)))
    assert [result.outputs["y"] for result in results] == [[2 * i] for i in range(50)]
    assert model.executed == [[i] for i in range(50)]
    assert model.threads == {"worker-m"}


@in_loop
async def test_result_has_queue_and_compute_seconds() -> None:
    gate = Gate()
    async with running_worker(DoublingModel(gate)) as worker:
        started_s = time.perf_counter()
        running = task(run(worker, 1))
        await soon(gate.arrived.is_set)
        arrived_s = time.perf_counter()
        waiting = worker.submit(lambda: numbers(2))
        held_s = time.perf_counter()
        await asyncio.sleep(0.05)
        held_s = time.perf_counter() - held_s
        gate.open()
        first, second = await asyncio.gather(running, waiting)
        elapsed_s = time.perf_counter() - started_s
        assert first.compute_s >= held_s
        assert first.compute_s + second.compute_s <= elapsed_s
        assert 0 <= first.queue_s <= arrived_s - started_s
        assert second.queue_s >= held_s


@in_loop
async def test_queue_depth_counts_queued_and_running() -> None:
    gate = Gate()
    async with running_worker(DoublingModel(gate)) as worker:
        assert worker.queue_depth == 0
        tasks = [task(run(worker, i)) for i in range(3)]
        await first_run(gate)
        assert worker.queue_depth == 3
        gate.open()
        await asyncio.gather(*tasks)
        assert worker.queue_depth == 0


@in_loop
async def test_cancelled_request_is_never_executed() -> None:
    gate = Gate()
    model = DoublingModel(gate)
    async with running_worker(model) as worker:
        first, cancelled, last = (task(run(worker, i)) for i in range(3))
        await first_run(gate)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert worker.queue_depth == 2
        gate.open()
        assert (await first).outputs == {"y": [0]}
        assert (await last).outputs == {"y": [4]}
    assert cancelled.cancelled()
    assert model.executed == [[0], [2]]


@in_loop
async def test_request_cancelled_during_run_harms_no_others() -> None:
    gate = Gate()
    async with running_worker(DoublingModel(gate)) as worker:
        cancelled, last = task(run(worker, 1)), task(run(worker, 2))
        await first_run(gate)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        gate.open()
        assert (await asyncio.wait_for(last, 60)).outputs == {"y": [4]}


@in_loop
@pytest.mark.parametrize("error", [MemoryError(), MemoryError("of numpy"), OutOfMemory("of the device")])
async def test_out_of_memory_frees_batch(error: Exception) -> None:
    """The frames of the failed run are freed before the next batch, without the garbage collector."""
    held: list[weakref.ref[Array]] = []
    messages = ("the batch does not fit into memory: MemoryError", "the batch does not fit into memory: of numpy")

    def behaviour(x: list[object]) -> None:
        if x == [1]:
            tensor: Array = np.zeros(8)
            held.append(weakref.ref(tensor))
            raise copy(error)
        assert held[0]() is None, "the failed batch is still referenced"

    async with running_worker(DoublingModel(behaviour)) as worker:
        gc.disable()
        try:
            failed, answered = await asyncio.gather(run(worker, 1), run(worker, 2), return_exceptions=True)
        finally:
            gc.enable()
    assert isinstance(failed, OutOfMemory)
    assert failed.message in (*messages, "of the device")
    assert isinstance(answered, BatchResult)


@in_loop
async def test_error_for_caller_keeps_no_tensors() -> None:
    held: list[weakref.ref[Array]] = []

    def behaviour(x: list[object]) -> None:
        tensor: Array = np.zeros(8)
        held.append(weakref.ref(tensor))
        try:
            raise ValueError("of the runtime")
        except ValueError as error:
            raise InvalidInput("x", "expected other values") from error

    async with running_worker(DoublingModel(behaviour)) as worker:
        gc.disable()
        try:
            [failed] = await asyncio.gather(run(worker, 1), return_exceptions=True)
            await soon(lambda: held[0]() is None)
        finally:
            gc.enable()
    assert isinstance(failed, InvalidInput)


@in_loop
async def test_failed_batch_does_not_fail_next() -> None:
    async with running_worker(DoublingModel()) as worker:
        before, bad, after = await asyncio.gather(
            run(worker, 1), run(worker, "bad"), run(worker, 2), return_exceptions=True
        )
        assert isinstance(bad, InvalidInput)
        assert [r.outputs for r in (before, after) if not isinstance(r, BaseException)] == [{"y": [2]}, {"y": [4]}]
        assert not worker.is_dead


@pytest.mark.parametrize("error", [ValueError("v"), StopIteration(), StopAsyncIteration()])
def test_exception_reaches_its_caller(error: Exception) -> None:
    def behaviour(x: list[object]) -> None:
        if x == [1]:
            raise error

    async def run_all() -> None:
        async with running_worker(DoublingModel(behaviour)) as worker:
            # A future cannot hold StopIteration; it raises another error instead.
            with pytest.raises((type(error), RuntimeError)):
                await asyncio.wait_for(run(worker, 1), 60)
            assert (await run(worker, 2)).outputs == {"y": [4]}

    asyncio.run(run_all())


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_dead_thread_fails_queued_and_later_requests(death: type[BaseException]) -> None:
    gate = Gate()

    def behaviour(_: list[object]) -> None:
        gate()
        raise death

    async def run_all() -> None:
        model = DoublingModel(behaviour)
        worker = BatchWorker("m", model)
        waiters = [task(run(worker, i)) for i in range(5)]
        await first_run(gate)
        gate.open()
        errors = await asyncio.wait_for(asyncio.gather(*waiters, return_exceptions=True), 60)
        assert [type(error) for error in errors] == [ModelFailed] * 5
        assert worker.is_dead
        assert worker.queue_depth == 0
        with pytest.raises(ModelFailed, match="load the model again"):
            await run(worker, 9)
        await asyncio.wait_for(worker.close(), 60)
        assert model.executed == [[0]]
        assert model.is_closed

    with capture_logs() as logs:
        asyncio.run(run_all())
    assert worker_threads_end()
    [entry] = logs
    assert (entry["event"], entry["log_level"], entry["model"]) == ("device thread ended", "error", "m")


@in_loop
async def test_close_completes_queue_then_closes_model() -> None:
    gate = Gate()
    model = DoublingModel(gate)
    worker = BatchWorker("m", model)
    waiting = [task(run(worker, i)) for i in range(4)]
    await first_run(gate)
    closing = worker.close()
    await asyncio.sleep(0.01)
    assert (closing.done(), model.is_closed, worker.is_dead) == (False, False, False)
    gate.open()
    await asyncio.wait_for(closing, 60)
    assert [(await result).outputs["y"] for result in waiting] == [[0], [2], [4], [6]]
    assert (model.is_closed, worker.is_dead) == (True, True)
    await asyncio.wait_for(worker.close(), 60)  # a second call has no effect


@in_loop
async def test_batch_after_close_is_refused() -> None:
    gate = Gate()
    worker = BatchWorker("m", DoublingModel(gate))
    first = task(run(worker, 1))
    await first_run(gate)
    closing = worker.close()
    await asyncio.sleep(0)
    late = task(run(worker, 2))
    await asyncio.sleep(0)
    gate.open()
    await asyncio.wait_for(closing, 60)
    assert (await first).outputs == {"y": [2]}
    with pytest.raises(ModelFailed):
        await asyncio.wait_for(late, 60)


@in_loop
async def test_abort_fails_queue_without_execution() -> None:
    gate = Gate()
    model = DoublingModel(gate)
    worker = BatchWorker("m", model)
    waiting = [task(run(worker, i)) for i in range(3)]
    await first_run(gate)
    worker.abort("too late")
    errors = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert [(type(error), str(error)) for error in errors] == [(Draining, "too late")] * 3
    gate.open()
    await asyncio.wait_for(worker.close(), 60)
    assert model.executed == [[0]]
    assert model.is_closed


@in_loop
async def test_failed_model_close_is_logged() -> None:
    class Stubborn(DoublingModel):
        def close(self) -> None:
            raise RuntimeError("no")

    with capture_logs() as logs:
        worker = BatchWorker("m", Stubborn())
        await asyncio.wait_for(worker.close(), 60)
    assert [entry["event"] for entry in logs] == ["model did not close cleanly"]


def test_closed_loop_does_not_block_thread() -> None:
    gate = Gate()
    model = DoublingModel(gate)

    async def run_all() -> None:
        worker = BatchWorker("m", model)
        waiting = task(run(worker, 1))
        await first_run(gate)
        waiting.cancel()
        worker.abort("the loop ends")

    asyncio.run(run_all())
    gate.open()
    assert worker_threads_end()
    assert model.is_closed


@in_loop
async def test_batch_is_built_in_worker_thread() -> None:
    gate = Gate()
    made: list[tuple[str, object]] = []

    def make(x: object) -> TensorBatch:
        made.append((threading.current_thread().name, x))
        if x == "unmade":
            raise ValueError(x)
        return numbers(x)

    model = DoublingModel(gate)
    async with running_worker(model) as worker:
        first, unmade, cancelled, last = (worker.submit(partial(make, x)) for x in (1, "unmade", 2, 3))
        await first_run(gate)
        assert made == [("worker-m", 1)]
        cancelled.cancel()
        gate.open()
        with pytest.raises(ValueError, match="unmade"):
            await unmade
        assert [(await done).outputs["y"] for done in (first, last)] == [[2], [6]]
    assert [x for _, x in made] == [1, "unmade", 3]
    assert model.executed == [[1], [3]]


needs_counts = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="the system does not count how long threads wait"
)


@contextmanager
def shared_cpu() -> Iterator[None]:
    """Share one CPU between this thread and a process that never sleeps."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            try:
                yield
            finally:
                busy.kill()
    finally:
        os.sched_setaffinity(0, before)


@needs_counts
def test_time_without_a_cpu_is_counted() -> None:
    with shared_cpu(), CpuWait() as wait:
        # The outer interval holds every wait that the inner one counts.
        started_s, cpu_started_s = time.perf_counter(), time.thread_time()
        before_s = wait.seconds()
        while wait.seconds() - before_s < 0.05:
            assert time.perf_counter() - started_s < HANGS_AFTER_S
        waited_s = wait.seconds() - before_s
        absent_s = (time.perf_counter() - started_s) - (time.thread_time() - cpu_started_s)
    assert 0.05 <= waited_s <= absent_s + 0.02, "no more than the time in which the thread did not run"


@needs_counts
def test_sleep_is_not_counted() -> None:
    with CpuWait() as wait:
        started_s = time.perf_counter()
        before_s = wait.seconds()
        time.sleep(0.2)
        waited_s = wait.seconds() - before_s
        assert waited_s <= time.perf_counter() - started_s - 0.2 + 0.01


@pytest.mark.parametrize("content", [None, b"", b"12", b"a b c\n"])
def test_system_without_counts_reports_zero(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schedstat"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(batch_worker, "_FILE", str(file))
    with CpuWait() as wait:
        assert wait.seconds() == 0.0


def test_cost_excludes_wait_for_cpu() -> None:
    assert BatchResult({}, 0.0, 3.0, cpu_wait_s=1.0).cost_s == 2.0
    assert BatchResult({}, 0.0, 1.0, cpu_wait_s=3.0).cost_s == 0.0


@in_loop
async def test_dispatcher_learns_cost_without_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole run is a wait for a CPU.
    monkeypatch.setattr(CpuWait, "seconds", lambda _: time.perf_counter())
    async with running_dispatcher(RowModel(lambda _: time.sleep(0.05)), knows_cost=False) as running:
        assert await running.send(1) == [1]
        assert running.dispatcher._cost.seconds(1, 1) < 0.001
