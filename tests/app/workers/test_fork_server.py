import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Parent:
    """The process of tests.support.fork_parent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._orders: IO[str] = process.stdin
        self._output: IO[str] = process.stdout
        self._lines: list[str] = []

    def order(self, text: str) -> None:
        self._orders.write(text + "\n")
        self._orders.flush()

    def wait_for(self, beginning: str) -> str:
        """Return the rest of the next line with this beginning; other lines are kept."""
        while True:
            for line in self._lines:
                if line.startswith(beginning):
                    self._lines.remove(line)
                    return line.removeprefix(beginning).strip()
            line = self._output.readline()
            assert line, "the parent has ended"
            self._lines.append(line)


@pytest.fixture
def parent() -> Iterator[Parent]:
    words = [sys.executable, "-m", "tests.support.fork_parent"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Parent(process)
        process.kill()


def wait_gone(*pids: int) -> None:
    """Wait until no process has these IDs, or only its exit status is left."""
    until_s = time.monotonic() + WAIT_S
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_workers_share_what_was_prepared(parent: Parent) -> None:
    pid = int(parent.wait_for("server"))
    assert parent.wait_for("says 0") == "rh:worker 0, 1 thread, ['prepared']"
    # It has its name before it forks a worker.
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "rh:fork-server"
    assert parent.wait_for("says 1") == "rh:worker 1, 1 thread, ['prepared']"
    worker = psutil.Process(int(parent.wait_for("forked 0")))
    assert worker.ppid() == pid
    # Only what it needs: standard streams, and its two sockets.
    assert worker.num_fds() == 5


def test_ends_are_reported_and_replaced(parent: Parent) -> None:
    parent.order("tell 0 exit")
    assert parent.wait_for("ended 0") == "3"
    parent.order("tell 1 segv")
    assert parent.wait_for("ended 1") == str(-signal.SIGSEGV)
    first = parent.wait_for("forked 0")
    parent.order("fork 0")
    second = parent.wait_for("forked 0")
    assert second != first
    parent.order(f"kill {os.getpid()}")
    parent.order(f"kill {second}")
    assert parent.wait_for("ended 0") == str(-signal.SIGKILL)


def test_stop_signals_do_not_end_workers(parent: Parent) -> None:
    os.kill(int(parent.wait_for("server")), signal.SIGTERM)
    parent.wait_for("says 0")
    for act in ("term", "int"):
        parent.order(f"tell 0 {act}")
        assert parent.wait_for("says 0") == "still here"


def test_killed_supervisor_ends_all_processes(parent: Parent) -> None:
    pids = [int(parent.wait_for(each)) for each in ("server", "forked 0", "forked 1")]
    parent.process.send_signal(signal.SIGKILL)
    parent.process.wait()
    wait_gone(*pids)


def test_killed_fork_server_is_reported(parent: Parent) -> None:
    pids = [int(parent.wait_for(each)) for each in ("server", "forked 0", "forked 1")]
    os.kill(pids[0], signal.SIGKILL)
    parent.wait_for("lost")
    wait_gone(*pids)


def test_close_ends_all_workers(parent: Parent) -> None:
    pids = [int(parent.wait_for(each)) for each in ("forked 0", "forked 1")]
    parent.order("close")
    parent.wait_for("closed")
    wait_gone(*pids)
