"""The second attempt of tests that failed, with real runs of pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attempts import MOST_FAILURES

ROOT = Path(__file__).resolve().parents[2]
UNSTABLE = """
def test_unstable():
    if not (mark := pathlib.Path(__file__).with_name("ran")).exists():
        mark.touch()
        raise AssertionError("busy")
"""
HANGING = """
def test_hanging():
    if not (mark := pathlib.Path(__file__).with_name("ran")).exists():
        mark.touch()
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(60)
"""


def attempts(folder: Path, tests: str, *options: str, **variables: str) -> tuple[int, str]:
    """Return the exit code and the output of a run of these tests."""
    (folder / "test_here.py").write_text("import contextlib, pathlib, time, pytest\n" + tests, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "tests.support.attempts", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [*command, "-c", str(folder / "pytest.ini"), *options, "--", "test_here.py"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_unstable_test_passes_and_is_named(tmp_path: Path, workers: str) -> None:
    code, output = attempts(tmp_path, UNSTABLE + "def test_good(): pass\n", "--numprocesses", workers)
    assert code == 0, output
    assert "unstable: " in output
    assert "test_here.py::test_unstable" in output.partition("unstable: ")[2]


def test_wrong_test_fails_twice(tmp_path: Path) -> None:
    code, output = attempts(tmp_path, "@pytest.mark.parametrize('x', ['a b[::]'])\ndef test_wrong(x): assert not x\n")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert output.count("1 failed") == 2
    assert "unstable" not in output


def test_many_failures_are_not_repeated(tmp_path: Path) -> None:
    wrong = f"@pytest.mark.parametrize('number', range({MOST_FAILURES + 1}))\ndef test_wrong(number): assert 0\n"
    code, output = attempts(tmp_path, wrong)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "run again" not in output


def test_file_with_errors_is_not_repeated(tmp_path: Path) -> None:
    code, output = attempts(tmp_path, "import nothing_of_this_name\n")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "run again" not in output


def test_passing_tests_run_once(tmp_path: Path) -> None:
    code, output = attempts(tmp_path, "def test_good(): pass\n")
    assert (code, output.count("1 passed")) == (0, 1)


def test_hanging_process_is_ended_and_named(tmp_path: Path) -> None:
    """A test that swallows the error of its time limit hangs until its process is ended."""
    limits = ("-o", "faulthandler_timeout=10", "-o", "faulthandler_exit_on_timeout=true")
    code, output = attempts(tmp_path, HANGING, "--numprocesses", "1", *limits)
    assert code == 0, output
    assert "test_hanging" in output.partition("unstable: ")[2]
    assert "Timeout (0:00:10)!" in output


def test_run_beyond_limit_names_its_tests(tmp_path: Path) -> None:
    slow = "def test_good(): pass\ndef test_slow(): time.sleep(600)\n"
    code, output = attempts(tmp_path, slow, "--numprocesses", "2", TESTS_LIMIT_S="40")
    assert code == pytest.ExitCode.INTERRUPTED, output
    assert "took longer than 40 s" in output
    still_running = output.partition("these tests were still running:")[2]
    assert "test_here.py::test_slow" in still_running
    assert "test_good" not in still_running
