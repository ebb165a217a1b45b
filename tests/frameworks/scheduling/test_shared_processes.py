"""Limits that forked processes share: real processes that use them at the same time, and processes that are killed."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.arena_peer import ROOT


def run(test: str) -> Any:
    """Run a function of `tests.support.limit_workers`."""
    command = [sys.executable, "-W", "error", "-m", "tests.support.limit_workers", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_processes_share_bound_of_requests() -> None:
    assert run("requests") == {"peak": 100, "rest": True, "inflight": 0, "waiting": 0}


def test_processes_share_bound_of_bytes() -> None:
    done = run("buffered_bytes")
    assert 91_000 <= done["peak"] <= 100_000
    assert done["rest"]


def test_processes_share_rate() -> None:
    done = run("rate")
    assert sum(done["granted"]) == pytest.approx(done["expected"], abs=4), "each may take one after the end"


@pytest.mark.extended
def test_killed_processes_leave_zeros() -> None:
    done = run("kills")
    assert (done["rest"], done["inflight"]) == (True, 0)
    assert done["left"] > 0


def test_lock_of_killed_process_is_free() -> None:
    assert run("held_lock") == {"before": [1.0, 2.0], "after": [3.0, 4.0]}
