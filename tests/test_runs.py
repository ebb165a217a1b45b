"""The summary of a run and the groups of its tests, with the hooks of tests/conftest.py."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import group_tests

ROOT = Path(__file__).resolve().parents[1]
UNSTABLE = """
import pathlib

def test_unstable():
    if not (mark := pathlib.Path(__file__).with_name("ran")).exists():
        mark.touch()
        raise AssertionError("busy")

def test_stable():
    pass
"""
WRONG = """
import pytest

@pytest.mark.parametrize("text", ["a b[::]"])
def test_wrong(text):
    assert not text
"""
CRASHING = """
import os

def test_crashing():
    os._exit(9)
"""


def run(folder: Path, tests: str) -> tuple[int, str]:
    """Return the exit code and the output of a run of these tests, with the options of the Makefile."""
    (folder / "test_here.py").write_text(tests, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = isa\n", encoding="utf-8")
    options = ["--numprocesses", "2", "--dist", "loadgroup", "--max-worker-restart", "0", "--reruns", "1"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *options]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), "test_here.py"],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_unstable_test_passes_and_is_named(tmp_path: Path) -> None:
    code, output = run(tmp_path, UNSTABLE)
    assert code == 0, output
    summary = output.partition("unstable: ")[2]
    assert "test_here.py::test_unstable" in summary
    assert "AssertionError: busy" in summary
    assert "test_stable" not in summary


@pytest.mark.extended
def test_failed_test_is_not_called_unstable(tmp_path: Path) -> None:
    code, output = run(tmp_path, WRONG)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 rerun" in output
    assert "unstable" not in output


@pytest.mark.extended
def test_crashed_process_ends_the_run(tmp_path: Path) -> None:
    code, output = run(tmp_path, CRASHING)
    assert code != 0
    assert "its process crashed or hung: test_here.py::test_crashing" in output


def test_file_with_shared_fixture_is_one_group(request: pytest.FixtureRequest) -> None:
    """One test of a file that has a shared fixture takes the other tests of the file into its group."""
    parent = request.node.parent
    items: list[pytest.Item] = [
        pytest.Function.from_parent(parent, name=name, callobj=lambda: None) for name in ("test_a", "test_b", "test_c")
    ]
    items[2].path = items[2].path.with_name("test_other.py")
    items[1].add_marker("ray")
    group_tests(items)
    groups = [mark.args[0] for item in items if (mark := item.get_closest_marker("xdist_group"))]
    assert groups == ["ray", "ray", "tests/test_runs.py"]


def test_counts_of_attempts_are_sent_at_once(pytestconfig: pytest.Config) -> None:
    """pytest-rerunfailures asks for them before each test of a worker."""
    connection = getattr(pytestconfig.failures_db, "sock", None)  # type: ignore[attr-defined]
    if connection is None:
        pytest.skip("one process runs all tests")
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
