"""The threads in which gRPC calls wait: as many as there are calls."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import structlog

log = structlog.get_logger(__name__)

_IDLE_S = 10.0


class CallThreads:
    """What grpcio's server needs of a thread pool, for less CPU a call than concurrent.futures takes.

    It is not bounded itself: who submits is. Threads that nobody needed for `idle_s` end.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        # None: a thread is to end.
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        # Threads add to it and take from it, each in one step. There is always a thread for each in it, if the system
        # gives one; of those that grow and shrink one at a time.
        self._unfinished: set[Work] = set()
        self._growing = threading.Lock()
        self._number = 0
        self._is_closed = False

    def submit(self, function: Callable[..., object], *arguments: Any) -> "Work":
        """Runs `function` in a thread. Where the system gives no more threads, in the next that is free: grpcio's
        server does not survive an error here.
        """
        work = Work(function, arguments)
        self._unfinished.add(work)
        if not self._are_enough():
            log.warning("no thread could be started: a call waits for one that is free")
        self._queue.put(work)
        return work

    def try_run(self, function: Callable[[], object]) -> bool:
        """Runs `function` in a thread; False if there is none for it."""
        work = Work(function, ())
        self._unfinished.add(work)
        if not self._are_enough():
            self._unfinished.discard(work)
            return False
        self._queue.put(work)
        return True

    def close(self) -> None:
        """Ends each thread when it has nothing more to do."""
        with self._growing:
            self._is_closed = True
            for _ in range(self._number):
                self._queue.put(None)

    def _are_enough(self) -> bool:
        """Starts a thread if there is none for each that is unfinished; whether there is now."""
        if len(self._unfinished) <= self._number:
            return True
        with self._growing:
            if len(self._unfinished) > self._number:
                try:
                    threading.Thread(target=self._run, name="grpc-call", daemon=True).start()
                except RuntimeError:
                    return False
                self._number += 1
        return True

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work.run()
            self._unfinished.discard(work)
            # A thread that waits does not hold on to its last call.
            del work

    def _next(self) -> "Work | None":
        """What is to be done next; None where there is no need of this thread any more."""
        while True:
            try:
                return self._queue.get(timeout=self._idle_s)
            except Empty:
                with self._growing:
                    # What came this moment has been promised this thread.
                    if self._is_closed or len(self._unfinished) < self._number:
                        self._number -= 1
                        return None


class Work:
    """A function that a thread is to run: as much of a Future as grpcio's server uses."""

    __slots__ = ("_arguments", "_callback", "_function", "_is_second")

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._callback: Callable[[Work], object] = _nothing
        # Whoever comes second, the function's end or the callback, finds it taken: one of them calls, and once.
        self._is_second = threading.Lock()

    def run(self) -> None:
        try:
            self._function(*self._arguments)
        except Exception:
            log.exception("a call's thread failed")
        if not self._is_second.acquire(blocking=False):
            self._callback(self)

    def add_done_callback(self, callback: "Callable[[Work], object]") -> None:
        """Once at most. Called at the end of the function, or now if that has passed."""
        self._callback = callback
        if not self._is_second.acquire(blocking=False):
            callback(self)


def _nothing(_: Work) -> None:
    pass
