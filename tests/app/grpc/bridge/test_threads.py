"""Test that each call has a thread, that threads are reused, and that idle threads end."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.grpc.bridge.threads import CallThreads
from tests.app.grpc.bridge.serving import count_call_threads


@contextmanager
def call_threads(idle_s: float = 10.0) -> Iterator[CallThreads]:
    threads = CallThreads(idle_s)
    try:
        yield threads
    finally:
        threads.close()
        assert within(60, lambda: count_call_threads() == 0)


def within(seconds: float, condition: object) -> bool:
    deadline_s = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


def test_submit_gives_each_running_call_a_thread() -> None:
    barrier = threading.Barrier(51)
    with call_threads() as threads:
        for _ in range(50):
            threads.submit(barrier.wait, 60)
        # The barrier would time out if one call waited for the thread of another.
        barrier.wait(60)


def test_threads_are_reused_for_later_calls() -> None:
    done = threading.Semaphore(0)
    with call_threads() as threads:
        for _ in range(100):
            threads.submit(done.release)
            assert done.acquire(timeout=60)
            assert within(60, lambda: not threads._unfinished)
        assert count_call_threads() == 1


def test_idle_threads_end_and_new_ones_start() -> None:
    with call_threads(idle_s=0.02) as threads:
        for _ in range(3):
            barrier = threading.Barrier(6)
            for _ in range(5):
                threads.submit(barrier.wait, 60)
            barrier.wait(60)
            assert within(60, lambda: count_call_threads() == 0)


def test_submit_while_threads_end_loses_no_call() -> None:
    done = threading.Semaphore(0)
    with call_threads(idle_s=0.0005) as threads:
        for i in range(500):
            threads.submit(done.release)
            assert done.acquire(timeout=60), i
            time.sleep(0.0004 + i % 5 * 0.0001)


def test_thread_survives_failed_call() -> None:
    done = threading.Event()
    with call_threads() as threads:
        threads.submit(int, "none")
        threads.submit(done.set)
        assert done.wait(60)


def test_done_callback_called_once_before_or_after_end() -> None:
    called: list[object] = []
    with call_threads() as threads:
        late = threads.submit(int)
        assert within(60, lambda: not threads._unfinished)
        late.add_done_callback(called.append)
        assert called == [late]
        released = threading.Event()
        early = threads.submit(released.wait, 60)
        early.add_done_callback(called.append)
        assert called == [late]
        released.set()
        assert within(60, lambda: called == [late, early])


def test_submit_without_new_threads_waits_for_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real_start = threading.Thread.start
    released, done = threading.Event(), threading.Semaphore(0)

    def start(thread: threading.Thread) -> None:
        if count_call_threads() >= 2:
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with call_threads() as threads:
        for _ in range(2):
            threads.submit(released.wait, 60)
        for _ in range(3):
            threads.submit(done.release)
        assert not threads.try_run(done.release)
        assert not done.acquire(timeout=0.05)
        released.set()
        for _ in range(3):
            assert done.acquire(timeout=60)
        assert within(60, lambda: threads.try_run(done.release))
        assert done.acquire(timeout=60)
