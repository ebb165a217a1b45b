"""Files that workers import when they run them, with real runs of pytest-xdist."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import pathlib, pytest
from tests.support.scheduling import CrashTolerantScheduling

@pytest.hookimpl
def pytest_xdist_make_scheduler(config, log):
    return CrashTolerantScheduling(config, log)

@pytest.fixture(scope="session")
def shared():
    log = pathlib.Path(__file__).with_name("shared")
    with log.open("a") as file:
        print("set up", file=file)
    yield
    with log.open("a") as file:
        print("torn down", file=file)
"""
LOGGED = """
import os, pathlib, pytest

with pathlib.Path(__file__).with_name("imports").open("a") as imports:
    print(__name__, file=imports)

@pytest.fixture(scope="module", autouse=True)
def own(shared):
    yield

"""


def run(folder: Path, *options: str, **files: str) -> str:
    """Return the output of a run of these files in one worker."""
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = chosen\n", encoding="utf-8")
    for name, tests in files.items():
        (folder / f"test_{name}.py").write_text(LOGGED + tests, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.support.file_items"]
    done = subprocess.run(
        [*command, "-c", str(folder / "pytest.ini"), "--rootdir", str(folder), "--dist", "loadfile", *options],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").splitlines()


def test_files_are_imported_by_one_worker(tmp_path: Path) -> None:
    files = {name: f"def test_{name}(): pass\n" for name in ("a", "b", "c", "d")}
    output = run(tmp_path, "--numprocesses", "2", **files)
    assert "4 passed" in output
    assert sorted(lines(tmp_path, "imports")) == ["test_a", "test_b", "test_c", "test_d"]


def test_session_fixtures_last_over_files(tmp_path: Path) -> None:
    tests = "@pytest.mark.parametrize('x', [1, 2])\ndef test_some(x): pass\n"
    output = run(tmp_path, "--numprocesses", "1", a=tests, b=tests, c="")
    assert "4 passed" in output
    assert lines(tmp_path, "shared") == ["set up", "torn down"]


def test_failures_and_errors_name_their_tests(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        "--numprocesses",
        "1",
        a="def test_wrong(): assert not 'wrong'\n",
        b="raise ValueError('at its import')\n",
        c="def test_good(): pass\ndef test_bad(missing): pass\n",
    )
    assert "FAILED test_a.py::test_wrong" in output
    assert "ERROR test_b.py - ValueError: at its import" in output
    assert "ERROR test_c.py::test_bad" in output
    assert "1 failed, 1 passed, 2 errors" in output


def test_markers_select_tests_of_files(tmp_path: Path) -> None:
    tests = "@pytest.mark.chosen\ndef test_chosen(): pass\ndef test_other(): pass\n"
    output = run(tmp_path, "--numprocesses", "1", "-m", "chosen", a=tests, b="def test_none(): pass\n")
    assert "1 passed" in output


def test_files_after_crash_run(tmp_path: Path) -> None:
    crash = "def test_before(): pass\ndef test_crash(): os._exit(9)\n"
    output = run(tmp_path, "--numprocesses", "1", a="def test_a(): pass\n", b=crash, c="def test_c(): pass\n")
    assert "crashed while running 'test_b.py'" in output
    assert "1 failed, 3 passed" in output


@pytest.mark.parametrize("workers", ["0", "2"])
def test_run_stops_after_most_failures(tmp_path: Path, workers: str) -> None:
    tests = "@pytest.mark.parametrize('x', range(50))\ndef test_wrong(x): assert x < 0\n"
    output = run(tmp_path, "--numprocesses", workers, "--maxfail", "3", a=tests)
    assert "stopping after 3 failures" in output
    assert "50 failed" not in output
