"""Run one instance of a model on a thread of its own. The dispatcher decides which batch is next."""

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import structlog

from frameworks.core.errors import Draining, ModelFailed, OutOfMemory, RoundhouseError, without_paths
from frameworks.runtime import BatchModel
from frameworks.scheduling.worker_inbox import next_message
from frameworks.types import Batch, Value

_FILE = "/proc/thread-self/schedstat"
# Three decimal numbers of at most 20 digits.
_MAX_BYTES = 64


class CpuWait:
    """The seconds that the opening thread was able to run and had no CPU, because others had them.

    On a busy machine the wall time of a run includes them. Batches are chosen by what a run costs without them: else a
    burst of other work decides which batch sizes seem to pay. Only Linux counts them (proc(5), schedstat; with
    CONFIG_SCHED_INFO). Reading costs 2 µs.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> "CpuWait":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def seconds(self) -> float:
        """Return the seconds since the thread began; 0 where the system does not count them."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, _MAX_BYTES, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0


log = structlog.get_logger(__name__)


class AllCancelled(Exception):
    """Every caller of a batch was cancelled before it began."""


class BatchResult(NamedTuple):
    """The outputs of a batch, and the seconds that it waited and computed.

    `thread_s`: CPU seconds of the worker's thread. Beside a busy event loop the wall time of a short run is mostly
    waiting for the interpreter's lock. `cpu_wait_s`: the part of `compute_s` in which other work had the CPUs.
    """

    outputs: dict[str, Value]
    queue_s: float
    compute_s: float
    thread_s: float = 0.0
    cpu_wait_s: float = 0.0

    @property
    def cost_s(self) -> float:
        """Seconds that the batch would take on CPUs without other work."""
        return max(0.0, self.compute_s - self.cpu_wait_s)


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], dict[str, Value]]
    future: asyncio.Future[BatchResult]
    enqueued_s: float


class BatchWorker:
    """Run the batches of a model in order of arrival on its own thread.

    The event loop owns the set of pending jobs and resolves their futures; the thread only computes. A job whose
    future was cancelled is skipped. If the thread dies, every pending job fails.
    """

    def __init__(self, name: str, model: BatchModel) -> None:
        self._name = name
        self.model = model
        """The event loop may run it too, while no job is pending here."""
        self.number = 0
        """That of the instance in its process."""
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: set[_Job] = set()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.is_dead = False
        self.running_since_s: float | None = None
        """When the batch that runs began (time.perf_counter); None while none runs. The thread writes it."""
        self.on_death: Callable[[], None] | None = None
        """Called in the event loop after `is_dead` has become true."""
        self._thread = threading.Thread(target=self._work, name=f"worker-{name}", daemon=True)
        self._thread.start()

    @property
    def queue_depth(self) -> int:
        """Batches that wait or run."""
        return len(self._pending)

    def submit(self, make_batch: Callable[[], Batch]) -> asyncio.Future[BatchResult]:
        """Queue a batch. `make_batch` is called on the worker's thread when the batch is next.

        The future fails with ModelFailed if the thread is dead, and with what `make_batch` or the model raises.
        """
        return self.call(lambda: self.model.infer(make_batch()))

    def call(self, work: Callable[[], dict[str, Value]]) -> asyncio.Future[BatchResult]:
        """Queue a function that runs the model. Errors as of `submit`."""
        job = _Job(work, self._loop.create_future(), time.perf_counter())
        if self.is_dead:
            fail(job.future, self._thread_ended())
            return job.future
        self._pending.add(job)
        job.future.add_done_callback(lambda _: self._pending.discard(job))
        self._jobs.put(job)
        return job.future

    def abort(self, message: str) -> None:
        """Fail all pending jobs with Draining. The thread ends after its current batch, which is not awaited."""
        for job in list(self._pending):
            fail(job.future, Draining(message))
        self._jobs.put(None)

    def close(self) -> asyncio.Future[None]:
        """End the thread after the jobs before this call, and close the model there. Done when both are done."""
        self._jobs.put(None)
        return asyncio.shield(self._ended)

    def _work(self) -> None:
        try:
            with CpuWait() as cpu_wait:
                while (job := next_message(self._jobs, self.model.on_idle)) is not None:
                    if not job.future.done():
                        self._run_one(job, cpu_wait)
                        self.running_since_s = None
                    del job
        except BaseException:
            # CancelledError, SystemExit and the like out of a model end the thread; the loop then fails the jobs.
            log.exception("device thread ended", model=self._name)
        finally:
            self.running_since_s = None
            try:
                self.model.close()
            except Exception:
                log.exception("model did not close cleanly", model=self._name)
            self._call_in_loop(self._end)

    def _run_one(self, job: _Job, cpu_wait: CpuWait) -> None:
        waited_s = cpu_wait.seconds()
        started_s, thread_started_s = time.perf_counter(), time.thread_time()
        self.running_since_s = started_s
        try:
            outputs = job.work()
        except (OutOfMemory, MemoryError) as error:
            self._call_in_loop(fail, job.future, without_frames(error))
            return
        except AllCancelled:
            # Without its frames: they would keep the tensors of the batch until a garbage collection.
            self._call_in_loop(fail, job.future, AllCancelled())
            return
        except Exception as error:  # noqa: BLE001 - handed to the caller
            self._call_in_loop(fail, job.future, for_callers(error))
            return
        compute_s, thread_s = time.perf_counter() - started_s, time.thread_time() - thread_started_s
        result = BatchResult(outputs, started_s - job.enqueued_s, compute_s, thread_s, cpu_wait.seconds() - waited_s)
        self._call_in_loop(_resolve, job.future, result)

    def _call_in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed: the process is shutting down and no caller waits.
            log.debug("worker ended after its loop", model=self._name)

    def _end(self) -> None:
        self.is_dead = True
        if self.on_death is not None:
            self.on_death()
        for job in list(self._pending):
            fail(job.future, self._thread_ended())
        if not self._ended.done():
            self._ended.set_result(None)

    def _thread_ended(self) -> ModelFailed:
        return ModelFailed.thread_ended(self._name)


def _resolve(future: asyncio.Future[BatchResult], result: BatchResult) -> None:
    if not future.done():
        future.set_result(result)


def fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    """Set the error on the future, unless it is done."""
    if not future.done():
        # asyncio's futures refuse a StopIteration; the caller would then wait for ever.
        stopped = isinstance(error, StopIteration)
        future.set_exception(RuntimeError("the model raised StopIteration") if stopped else error)


def for_callers(error: Exception) -> Exception:
    """Return the error of a run. Its frames would keep the tensors of the batch until garbage is collected.

    Errors of other kinds keep their frames, for the log.
    """
    if isinstance(error, RoundhouseError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    return error


def without_frames(error: OutOfMemory | MemoryError) -> OutOfMemory:
    """Return a new error: the frames of the old one would keep the tensors of the batch while its halves run."""
    if isinstance(error, OutOfMemory):
        return OutOfMemory(error.message, error.public)
    reason = str(error) or type(error).__name__
    what = "the batch does not fit into memory"
    return OutOfMemory(f"{what}: {reason}", f"{what}: {without_paths(reason)}")
