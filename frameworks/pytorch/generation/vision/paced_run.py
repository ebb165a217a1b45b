"""Run a function of torch in slices of time, on a thread of its own that never runs concurrently with its caller.

A vision tower takes as long as hundreds of decode steps. Its modules pause between each other, so that the steps of
running texts continue.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch

from frameworks.pytorch.openmp import release_threads

Result = TypeVar("Result")


class _Cancelled(BaseException):
    """The result is no longer wanted. No function catches it."""


class PacedThread(Generic[Result]):
    """A thread that computes one function after another, a slice at a time. Its caller waits meanwhile."""

    def __init__(self, name: str, modules: Iterable[torch.nn.Module], intra_op_threads: int) -> None:
        """`modules`: pause before their forward passes, where the thread runs them."""
        self._intra_op_threads = intra_op_threads
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._until_s = 0.0
        # Seconds from the start of each module to the next pause, when it ran last.
        self._seconds: dict[torch.nn.Module, float] = {}
        self._running: tuple[torch.nn.Module, float] | None = None
        self._work: Callable[[], Result] | None = None
        self._is_cancelled = self._is_closed = False
        self._outcome: tuple[Result | None, BaseException | None] = (None, None)
        self._hooks = [module.register_forward_pre_hook(self._pause) for module in modules]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a function has begun and not ended."""
        return self._work is not None

    def begin(self, work: Callable[[], Result]) -> None:
        """Set the function that the next slices compute. The one before has ended or was cancelled."""
        assert self._work is None
        self._work = work

    def advance(self, seconds: float) -> Result | None:
        """Compute for about so long; return the result when the function has ended, else None. Raises its error."""
        self._until_s = time.perf_counter() + seconds
        self._go.release()
        self._back.acquire()
        if self._work is not None:
            return None
        result, error = self._outcome
        self._outcome = (None, None)
        if error is not None:
            raise error
        return result

    def cancel(self) -> None:
        """End the function that has begun; nothing without one."""
        if self._work is not None:
            self._is_cancelled = True
            self._go.release()
            self._back.acquire()
            self._outcome = (None, None)

    def close(self) -> None:
        """End the thread, and remove the pauses."""
        self.cancel()
        self._is_closed = True
        self._go.release()
        self._thread.join()
        for hook in self._hooks:
            hook.remove()

    def _run(self) -> None:
        torch.set_num_threads(self._intra_op_threads)
        while True:
            self._go.acquire()
            if self._is_closed:
                return
            work = self._work
            assert work is not None
            try:
                if not self._is_cancelled:
                    with torch.inference_mode():
                        self._outcome = work(), None
            except _Cancelled:
                pass
            except BaseException as error:  # noqa: BLE001 - raised by `advance`
                self._outcome = None, error
            del work
            self._work, self._is_cancelled, self._running = None, False, None
            self._hand_back()

    def _pause(self, module: torch.nn.Module, _: Any) -> None:
        """Return to the caller if the slice is over, or would be before the module has run."""
        if threading.current_thread() is not self._thread:
            return
        now_s = time.perf_counter()
        if self._running is not None:
            before, started_s = self._running
            self._seconds[before] = now_s - started_s
        if now_s + self._seconds.get(module, 0.0) >= self._until_s:
            self._hand_back()
            self._go.acquire()
            if self._is_cancelled:
                raise _Cancelled
            now_s = time.perf_counter()
        self._running = module, now_s

    def _hand_back(self) -> None:
        if self._intra_op_threads > 1:
            # They would slow down those of the steps.
            release_threads()
        self._back.release()
