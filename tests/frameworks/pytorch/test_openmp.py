"""OpenMP threads are released and restart with the next product."""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch

from frameworks.pytorch.openmp import _mkl_setter, parallel_library, release_threads, single_threaded_mkl

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP is Linux's")


def thread_ids() -> set[int]:
    """Return the ids of all threads. Idle ones of earlier tests may end at any moment."""
    return {each.id for each in psutil.Process().threads()}


def wait_until(is_true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def compute() -> float:
    """Compute enough for two threads."""
    torch.set_num_threads(2)
    return float((torch.ones(400, 400) @ torch.ones(400, 400)).add(1).sum())


def in_thread(*work: Callable[[], object]) -> list[object]:
    """Run all work in one new thread, in order."""
    with ThreadPoolExecutor(1) as thread:
        return [thread.submit(each).result() for each in work]


def test_released_threads_restart_on_demand() -> None:
    assert parallel_library() is not None, "torch for Linux brings GNU OpenMP"
    first, _, without, again, with_it, _, once_more = in_thread(
        compute, release_threads, thread_ids, compute, thread_ids, release_threads, thread_ids
    )
    assert first == again == 400 * 400 * 401
    assert isinstance(without, set)
    assert isinstance(with_it, set)
    assert isinstance(once_more, set)
    assert len(with_it - without) == 1
    assert not once_more - without


def test_release_spares_other_threads() -> None:
    done, checked, without = threading.Event(), threading.Event(), thread_ids()

    def other() -> None:
        compute()
        done.set()
        assert checked.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert done.wait(60)
        release_threads()
        before = thread_ids()
        assert len(before - without) == 2, "the thread, and one of OpenMP"
        assert in_thread(release_threads, compute, release_threads) == [None, 400 * 400 * 401.0, None]
        # A thread that was joined may stay in the process table for a moment.
        wait_until(lambda: not thread_ids() - before)
        assert thread_ids() >= before - without
    finally:
        checked.set()
        thread.join()


def test_release_without_threads() -> None:
    assert in_thread(release_threads, release_threads) == [None, None]


needs_mkl = pytest.mark.skipif(_mkl_setter() is None, reason="torch has no MKL here")


@needs_mkl
def test_single_threaded_mkl_starts_no_thread() -> None:
    """A product within the block needs no second thread; one behind it does."""
    square = torch.ones(400, 400)

    def multiply() -> float:
        torch.set_num_threads(2)
        return float((square @ square)[0, 0])

    def multiply_alone() -> float:
        torch.set_num_threads(2)
        with single_threaded_mkl():
            return float((square @ square)[0, 0])

    before, alone, during, shared, after = in_thread(thread_ids, multiply_alone, thread_ids, multiply, thread_ids)
    assert alone == shared == 400
    assert isinstance(before, set)
    assert isinstance(during, set)
    assert isinstance(after, set)
    assert not during - before
    assert len(after - before) == 1


@needs_mkl
def test_single_threaded_mkl_restores_threads_after_error() -> None:
    set_threads = _mkl_setter()
    assert set_threads is not None, "torch for Linux shows MKL's functions"
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), single_threaded_mkl():
            1 / 0  # noqa: B018
        assert set_threads(2) == 2
    finally:
        torch.set_num_threads(1)
