"""Threads for calls: one for each, kept for the next, gone when nobody needs them."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.grpc.bridge.call_threads import CallThreads
from tests.app.grpc.bridge.serving import threads_of_calls


@contextmanager
def call_threads(idle_s: float = 10.0) -> Iterator[CallThreads]:
    threads = CallThreads(idle_s)
    try:
        yield threads
    finally:
        threads.close()
        assert within(5, lambda: threads_of_calls() == 0)


def within(seconds: float, condition: object) -> bool:
    deadline_s = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


def test_each_call_has_a_thread_while_it_lasts() -> None:
    together = threading.Barrier(51)
    with call_threads() as threads:
        for _ in range(50):
            threads.submit(together.wait, 5)
        # Nobody would come through if they waited for each other's threads.
        together.wait(5)


def test_threads_serve_one_call_after_another() -> None:
    done = threading.Semaphore(0)
    with call_threads() as threads:
        for _ in range(100):
            threads.submit(done.release)
            assert done.acquire(timeout=5)
            assert within(5, lambda: not threads._unfinished)
        assert threads_of_calls() == 1


def test_idle_threads_end_and_new_ones_begin() -> None:
    with call_threads(idle_s=0.02) as threads:
        for _ in range(3):
            together = threading.Barrier(6)
            for _ in range(5):
                threads.submit(together.wait, 5)
            together.wait(5)
            assert within(5, lambda: threads_of_calls() == 0)


def test_nothing_is_lost_between_threads_that_end_and_calls_that_come() -> None:
    done = threading.Semaphore(0)
    with call_threads(idle_s=0.0005) as threads:
        for i in range(500):
            threads.submit(done.release)
            assert done.acquire(timeout=5), i
            time.sleep(0.0004 + i % 5 * 0.0001)


def test_a_call_that_fails_leaves_its_thread_alive() -> None:
    done = threading.Event()
    with call_threads() as threads:
        threads.submit(int, "none")
        threads.submit(done.set)
        assert done.wait(5)


def test_the_callback_is_called_once_whenever_the_function_ends() -> None:
    called: list[object] = []
    with call_threads() as threads:
        late = threads.submit(int)
        assert within(5, lambda: not threads._unfinished)
        late.add_done_callback(called.append)
        assert called == [late]
        go_on = threading.Event()
        early = threads.submit(go_on.wait, 5)
        early.add_done_callback(called.append)
        assert called == [late]
        go_on.set()
        assert within(5, lambda: called == [late, early])


def test_without_threads_calls_wait_for_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real_start = threading.Thread.start
    go_on, done = threading.Event(), threading.Semaphore(0)

    def start(thread: threading.Thread) -> None:
        if threads_of_calls() >= 2:
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with call_threads() as threads:
        for _ in range(2):
            threads.submit(go_on.wait, 5)
        for _ in range(3):
            threads.submit(done.release)
        assert not threads.try_run(done.release)
        assert not done.acquire(timeout=0.05)
        go_on.set()
        for _ in range(3):
            assert done.acquire(timeout=5)
        assert within(5, lambda: threads.try_run(done.release))
        assert done.acquire(timeout=5)
