"""The time that a thread waits for a CPU: counted on Linux, and left out of what batches are expected to cost."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frameworks.scheduling.batch import cpu_wait
from frameworks.scheduling.batch.cpu_wait import CpuWait
from frameworks.scheduling.batch.worker import BatchResult
from tests.frameworks.scheduling.batch.dispatching import RowModel, running_dispatcher
from tests.support.loops import HANGS_AFTER_S, in_loop

needs_counts = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="the system does not count how long threads wait"
)


@contextmanager
def shared_cpu() -> Iterator[None]:
    """Share one CPU between this thread and a process that never sleeps."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            try:
                yield
            finally:
                busy.kill()
    finally:
        os.sched_setaffinity(0, before)


@needs_counts
def test_time_without_a_cpu_is_counted() -> None:
    with shared_cpu(), CpuWait() as wait:
        # The outer interval holds every wait that the inner one counts.
        started_s, cpu_started_s = time.perf_counter(), time.thread_time()
        before_s = wait.seconds()
        while wait.seconds() - before_s < 0.05:
            assert time.perf_counter() - started_s < HANGS_AFTER_S
        waited_s = wait.seconds() - before_s
        absent_s = (time.perf_counter() - started_s) - (time.thread_time() - cpu_started_s)
    assert 0.05 <= waited_s <= absent_s + 0.02, "no more than the time in which the thread did not run"


@needs_counts
def test_sleep_is_not_counted() -> None:
    with CpuWait() as wait:
        started_s = time.perf_counter()
        before_s = wait.seconds()
        time.sleep(0.2)
        waited_s = wait.seconds() - before_s
        assert waited_s <= time.perf_counter() - started_s - 0.2 + 0.01


@pytest.mark.parametrize("content", [None, b"", b"12", b"a b c\n"])
def test_system_without_counts_reports_zero(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schedstat"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(cpu_wait, "_FILE", str(file))
    with CpuWait() as wait:
        assert wait.seconds() == 0.0


def test_cost_excludes_wait_for_cpu() -> None:
    assert BatchResult({}, 0.0, 3.0, cpu_wait_s=1.0).cost_s == 2.0
    assert BatchResult({}, 0.0, 1.0, cpu_wait_s=3.0).cost_s == 0.0


@in_loop
async def test_dispatcher_learns_cost_without_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole run is a wait for a CPU.
    monkeypatch.setattr(CpuWait, "seconds", lambda _: time.perf_counter())
    async with running_dispatcher(RowModel(lambda _: time.sleep(0.05)), knows_cost=False) as running:
        assert await running.send(1) == [1]
        assert running.dispatcher._cost.seconds(1, 1) < 0.001
