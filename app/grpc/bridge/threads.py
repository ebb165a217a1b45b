"""Provide one thread for each running gRPC call."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import structlog

log = structlog.get_logger(__name__)

_IDLE_S = 10.0


class CallThreads:
    """Thread pool with the methods that grpcio's server uses; costs less CPU per call than concurrent.futures.

    The pool has no bound of its own: its users bound the number of calls. A thread ends after `idle_s` without work.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        # None ends the thread that reads it.
        self._queue: SimpleQueue[ThreadTask | None] = SimpleQueue()
        # Threads add and remove in one atomic step each. The pool has a thread for each entry, if the system allows
        # it. `_resizing` guards `_num_threads`.
        self._unfinished: set[ThreadTask] = set()
        self._resizing = threading.Lock()
        self._num_threads = 0
        self._is_closed = False

    def submit(self, function: Callable[..., object], *arguments: Any) -> "ThreadTask":
        """Run `function` in a thread.

        If the system refuses another thread, the task waits for a free one: grpcio's server does not survive an error
        here.
        """
        task = ThreadTask(function, arguments)
        self._unfinished.add(task)
        if not self._has_enough_threads():
            log.warning("cannot start a thread; the call waits for a free one")
        self._queue.put(task)
        return task

    def try_run(self, function: Callable[[], object]) -> bool:
        """Run `function` in a thread; return False if no thread is available."""
        task = ThreadTask(function, ())
        self._unfinished.add(task)
        if not self._has_enough_threads():
            self._unfinished.discard(task)
            return False
        self._queue.put(task)
        return True

    def close(self) -> None:
        """End each thread after its current work."""
        with self._resizing:
            self._is_closed = True
            for _ in range(self._num_threads):
                self._queue.put(None)

    def _has_enough_threads(self) -> bool:
        """Start a thread if the unfinished tasks outnumber the threads; return whether there are enough now."""
        if len(self._unfinished) <= self._num_threads:
            return True
        with self._resizing:
            if len(self._unfinished) > self._num_threads:
                try:
                    threading.Thread(target=self._run, name="grpc-call", daemon=True).start()
                except RuntimeError:
                    return False
                self._num_threads += 1
        return True

    def _run(self) -> None:
        while (task := self._next()) is not None:
            task.run()
            self._unfinished.discard(task)
            # A thread that waits must not keep its last call in memory.
            del task

    def _next(self) -> "ThreadTask | None":
        """Wait for the next task; return None if this thread must end."""
        while True:
            try:
                return self._queue.get(timeout=self._idle_s)
            except Empty:
                with self._resizing:
                    # A task that was submitted during the timeout counts on this thread.
                    if self._is_closed or len(self._unfinished) < self._num_threads:
                        self._num_threads -= 1
                        return None


class ThreadTask:
    """A function to run in a thread, with the part of the Future interface that grpcio's server uses."""

    __slots__ = ("_arguments", "_callback", "_function", "_is_second")

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._callback: Callable[[ThreadTask], object] = _do_nothing
        # The end of the function and `add_done_callback` both try to acquire it. The second one fails and calls back,
        # so the callback is called exactly once.
        self._is_second = threading.Lock()

    def run(self) -> None:
        try:
            self._function(*self._arguments)
        except Exception:
            log.exception("the thread of a gRPC call failed")
        if not self._is_second.acquire(blocking=False):
            self._callback(self)

    def add_done_callback(self, callback: "Callable[[ThreadTask], object]") -> None:
        """Call `callback` at the end of the function, or now if it has ended. Call this method at most once."""
        self._callback = callback
        if not self._is_second.acquire(blocking=False):
            callback(self)


def _do_nothing(_: ThreadTask) -> None:
    pass
