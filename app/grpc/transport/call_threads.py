"""The threads in which gRPC calls wait: as many as there are calls, the one that waited last is taken first."""

import threading
from collections import deque
from collections.abc import Callable
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
        # Several threads take from these and add to them, each in one step.
        self._idle: list[_Waiter] = []
        self._backlog: deque[Work] = deque()
        self._is_closed = False

    def submit(self, function: Callable[..., object], *arguments: Any) -> "Work":
        """Runs `function` in a thread. Where the system gives no more threads, in the next that is free: grpcio's
        server does not survive an error here.
        """
        work = Work(function, arguments)
        if not self._hand_over(work):
            log.warning("no thread could be started: a call waits for one that is free")
            self._backlog.append(work)
            self._take_up_backlog()
        return work

    def try_run(self, function: Callable[[], object]) -> bool:
        """Runs `function` in a thread; False if there is none for it."""
        return self._hand_over(Work(function, ()))

    def close(self) -> None:
        """Ends the threads that wait, and each other one when it has nothing more to do."""
        self._is_closed = True
        while True:
            try:
                self._idle.pop().hand(None)
            except IndexError:
                return

    def _hand_over(self, work: "Work") -> bool:
        try:
            waiter = self._idle.pop()
        except IndexError:
            waiter = _Waiter()
            thread = threading.Thread(target=self._run, args=(waiter,), name="grpc-call", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
        waiter.hand(work)
        return True

    def _run(self, waiter: "_Waiter") -> None:
        while (work := self._next(waiter)) is not None:
            work.run()
            # A thread that waits does not hold on to its last call.
            del work
            self._idle.append(waiter)
            if self._backlog:
                self._take_up_backlog()
            if self._is_closed:
                self.close()

    def _next(self, waiter: "_Waiter") -> "Work | None":
        """What is to be done next; None: nothing, for too long or for ever."""
        if not waiter.is_handed.acquire(timeout=self._idle_s):
            try:
                self._idle.remove(waiter)
            except ValueError:
                # Taken this moment: the work is on its way.
                waiter.is_handed.acquire()
            else:
                return None
        work, waiter.work = waiter.work, None
        return work

    def _take_up_backlog(self) -> None:
        """Hands on what waits if a thread is free."""
        try:
            waiter = self._idle.pop()
        except IndexError:
            return
        try:
            waiter.hand(self._backlog.popleft())
        except IndexError:
            self._idle.append(waiter)


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


class _Waiter:
    """A thread that waits to be handed something."""

    __slots__ = ("is_handed", "work")

    def __init__(self) -> None:
        self.is_handed = threading.Lock()
        self.is_handed.acquire()
        self.work: Work | None = None

    def hand(self, work: Work | None) -> None:
        self.work = work
        self.is_handed.release()


def _nothing(_: Work) -> None:
    pass
