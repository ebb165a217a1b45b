"""A worker: one model on one device thread. What waits for it, and in which order, is the dispatcher's affair."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from frameworks.errors import Draining, ModelFailed, OutOfMemory
from frameworks.runtime import BatchModel
from frameworks.scheduling.idle import next_of
from frameworks.types import Batch, Value

log = structlog.get_logger(__name__)


class BatchResult(NamedTuple):
    """What a run gave, and the seconds that the batch waited and computed.

    `thread_s`: CPU seconds of the worker's thread in the run. Beside a busy event loop the wall time of a short run is
    mostly waiting for the interpreter's lock.
    """

    outputs: dict[str, Value]
    queue_s: float
    compute_s: float
    thread_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Job:
    make_batch: Callable[[], Batch]
    future: asyncio.Future[BatchResult]
    enqueued_s: float


class BatchWorker:
    """Runs a model's batches in order of arrival on a thread of its own.

    The event loop owns the set of pending jobs and resolves their futures; the thread only computes. A job whose
    caller has gone is skipped. If the thread dies, every waiter gets an error: none hangs.
    """

    def __init__(self, name: str, model: BatchModel) -> None:
        self._name = name
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: set[_Job] = set()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.is_dead = False
        self._thread = threading.Thread(target=self._work, name=f"worker-{name}", daemon=True)
        self._thread.start()

    @property
    def queue_depth(self) -> int:
        """Batches that wait or run."""
        return len(self._pending)

    def submit(self, make_batch: Callable[[], Batch]) -> asyncio.Future[BatchResult]:
        """Queues a batch that is made, in the worker's thread, when its turn comes: assembling costs the loop nothing.

        The future has the result, or ModelFailed if the thread is dead, or what `make_batch` or the model raised.
        """
        job = _Job(make_batch, self._loop.create_future(), time.perf_counter())
        if self.is_dead:
            fail(job.future, ModelFailed(f'model "{self._name}": its device thread has ended; load the model again'))
            return job.future
        self._pending.add(job)
        job.future.add_done_callback(lambda _: self._pending.discard(job))
        self._jobs.put(job)
        return job.future

    def infer_inline(self, batch: Batch) -> dict[str, Value]:
        """One run in the calling thread, for which nothing may be queued here. Raises what the model raises."""
        return self._model.infer(batch)

    def abort(self, message: str) -> None:
        """Fails all who wait with Draining. The thread ends after the batch that it is in; nobody waits for it."""
        for job in list(self._pending):
            fail(job.future, Draining(message))
        self._jobs.put(None)

    def close(self) -> asyncio.Future[None]:
        """Ends the thread after the jobs before it, and closes the model there. Done when both are."""
        self._jobs.put(None)
        return asyncio.shield(self._ended)

    def _work(self) -> None:
        try:
            while (job := next_of(self._jobs, self._model.on_idle)) is not None:
                if not job.future.done():
                    self._run_one(job)
                del job
        except BaseException:
            # CancelledError, SystemExit and the like out of a model end the thread; the loop then fails the waiters.
            log.exception("device thread ended", model=self._name)
        finally:
            try:
                self._model.close()
            except Exception:
                log.exception("model did not close cleanly", model=self._name)
            self._tell_loop(self._end)

    def _run_one(self, job: _Job) -> None:
        started_s, thread_started_s = time.perf_counter(), time.thread_time()
        try:
            outputs = self._model.infer(job.make_batch())
        except (OutOfMemory, MemoryError) as error:
            self._tell_loop(fail, job.future, without_frames(error))
            return
        except Exception as error:  # noqa: BLE001 - handed to the caller
            self._tell_loop(fail, job.future, error)
            return
        compute_s, thread_s = time.perf_counter() - started_s, time.thread_time() - thread_started_s
        self._tell_loop(_resolve, job.future, BatchResult(outputs, started_s - job.enqueued_s, compute_s, thread_s))

    def _tell_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed: the process is going down and nobody waits any more.
            log.debug("worker ended after its loop", model=self._name)

    def _end(self) -> None:
        self.is_dead = True
        for job in list(self._pending):
            fail(job.future, ModelFailed(f'model "{self._name}": its device thread ended; load the model again'))
        if not self._ended.done():
            self._ended.set_result(None)


def _resolve(future: asyncio.Future[BatchResult], result: BatchResult) -> None:
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[BatchResult], error: BaseException) -> None:
    """Hands an error to whoever waits for the future, if anybody still does."""
    if not future.done():
        # asyncio's futures refuse a StopIteration; the waiter would then wait for ever.
        stopped = isinstance(error, StopIteration)
        future.set_exception(RuntimeError("the model raised StopIteration") if stopped else error)


def without_frames(error: OutOfMemory | MemoryError) -> OutOfMemory:
    """The same anew: the frames that the old one holds would keep the batch's tensors while its halves run."""
    if isinstance(error, OutOfMemory):
        return OutOfMemory(error.message)
    return OutOfMemory(f"the batch does not fit into memory: {str(error) or type(error).__name__}")
