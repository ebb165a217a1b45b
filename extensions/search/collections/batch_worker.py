"""Run jobs of the event loop on a thread, which takes all queued jobs as one batch."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from frameworks.core.errors import Draining, Overloaded

_RETRY_AFTER_S = 1.0

Job = TypeVar("Job")
Result = TypeVar("Result")


class BatchWorker(Generic[Job, Result]):
    """A thread that runs `handle` with the queued jobs, in order, at most `max_batch` of them.

    `handle` returns a result or an exception for each job. The jobs that arrive while it runs are its next batch, and
    so are those of one round of the event loop: the callers of a batch continue in one round.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[list[Job]], Sequence[Result | Exception]],
        *,
        max_batch: int = 1 << 30,
        gather_share: float = 0.0,
    ) -> None:
        """Start the thread; construct it on the event loop that calls `run`.

        `gather_share`: of the time of a batch of several jobs; the next batch waits so long for as many jobs. Callers
        that search again come back one after another, and the first one would be alone in its batch.
        """
        self._name, self._handle, self._max_batch, self._gather_share = name, handle, max_batch, gather_share
        self._expected, self._gather_until_s = 0, 0.0
        self._loop = asyncio.get_running_loop()
        self._arrived: list[tuple[Job, asyncio.Future[Result]]] = []
        self._queued: deque[tuple[Job, asyncio.Future[Result]]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def run(self, job: Job) -> Result:
        """Return the result of a job. A job whose caller is cancelled before its batch begins is not run."""
        if self._is_closing:
            raise Draining(Draining.REFUSED)
        future: asyncio.Future[Result] = self._loop.create_future()
        if not self._arrived:
            self._loop.call_soon(self._hand_over)
        self._arrived.append((job, future))
        return await future

    def _hand_over(self) -> None:
        """Give the thread what has arrived in this round of the event loop."""
        with self._changed:
            self._queued.extend(self._arrived)
            self._arrived.clear()
            self._changed.notify()

    async def close(self) -> None:
        """Run the queued jobs, and end the thread."""
        self._hand_over()
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while taken := self._take():
            jobs = [job for job, _ in taken]
            started_s = time.monotonic()
            try:
                results = self._handle(jobs)
            except Exception as error:  # noqa: BLE001 - the callers get it
                results = [error] * len(jobs)
            futures = [future for _, future in taken]
            try:
                self._loop.call_soon_threadsafe(_deliver, futures, results)
            except RuntimeError:  # the loop is closed: no caller is left
                return
            ended_s = time.monotonic()
            self._expected = len(taken)
            self._gather_until_s = ended_s + self._gather_share * (ended_s - started_s)

    def _take(self) -> list[tuple[Job, asyncio.Future[Result]]]:
        """Wait for jobs whose callers were not cancelled; an empty list at the end."""
        while True:
            with self._changed:
                while not self._queued and not self._is_closing:
                    self._changed.wait()
                while 0 < len(self._queued) < self._expected and not self._is_closing:
                    left_s = self._gather_until_s - time.monotonic()
                    if left_s <= 0:
                        break
                    self._changed.wait(left_s)
                if not self._queued:
                    return []
                taken = [self._queued.popleft() for _ in range(min(len(self._queued), self._max_batch))]
            if taken := [each for each in taken if not each[1].cancelled()]:
                return taken


def _deliver(futures: list[asyncio.Future[Result]], results: Sequence[Result | Exception]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.cancelled():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


@dataclass(slots=True)
class QueueLimit:
    """Limit the queued jobs in number and in bytes. Used on the event loop. `name`: of the queue, for messages."""

    name: str
    max_count: int
    max_bytes: int
    count: int = 0
    bytes: int = 0

    @contextmanager
    def held(self, count: int, size: int) -> Iterator[None]:
        """Count a job within the block. Raises Overloaded. A job larger than the limit is accepted if it is alone."""
        if self.count and (self.count + count > self.max_count or self.bytes + size > self.max_bytes):
            raise Overloaded(
                f"{self.name}: expected at most {self.max_count} waiting and {self.max_bytes} bytes, got more; "
                "try again later",
                _RETRY_AFTER_S,
            )
        self.count += count
        self.bytes += size
        try:
            yield
        finally:
            self.count -= count
            self.bytes -= size
