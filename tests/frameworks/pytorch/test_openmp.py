"""Threads that wait for nothing are let go, and come again when there is something to compute."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch

from frameworks.pytorch.openmp import _library, release_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP is Linux's")


def num_threads() -> int:
    number: int = psutil.Process().num_threads()
    return number


def compute() -> float:
    """Enough for two threads."""
    torch.set_num_threads(2)
    return float((torch.ones(400, 400) @ torch.ones(400, 400)).add(1).sum())


def in_thread(*work: Callable[[], object]) -> list[object]:
    """One after the other, in one thread that is new."""
    with ThreadPoolExecutor(1) as thread:
        return [thread.submit(each).result() for each in work]


def test_they_end_and_come_again() -> None:
    assert _library() is not None, "torch for Linux brings GNU OpenMP"
    first, _, without, again, with_it, _, once_more = in_thread(
        compute, release_threads, num_threads, compute, num_threads, release_threads, num_threads
    )
    assert first == again == 400 * 400 * 401
    assert isinstance(without, int)
    assert with_it == without + 1
    assert once_more == without


def test_those_of_another_thread_stay() -> None:
    done, checked = threading.Event(), threading.Event()

    def other() -> None:
        compute()
        done.set()
        assert checked.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert done.wait(10)
        release_threads()
        before = num_threads()
        assert in_thread(release_threads, compute, release_threads) == [None, 400 * 400 * 401.0, None]
        assert num_threads() == before
    finally:
        checked.set()
        thread.join()


def test_who_has_none_may_let_them_go_too() -> None:
    assert in_thread(release_threads, release_threads) == [None, None]
