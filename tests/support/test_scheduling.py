"""The distribution of tests after a process has crashed, with real runs of pytest-xdist."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scheduling import SHARED_PLAYGROUND, SHARED_SITE, scope_of

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import pytest

from tests.support.scheduling import SHARED_PLAYGROUND, SHARED_SITE, scope_of
from tests.support.scheduling import CrashTolerantScheduling

@pytest.hookimpl
def pytest_xdist_make_scheduler(config, log):
    return CrashTolerantScheduling(config, log)
"""
CRASHING = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_some(number):
    with pathlib.Path(__file__).with_name("ran").open("a") as ran:
        print(f"{name}{{number}}", file=ran)
    if number == {crashing}:
        os._exit(9)
"""


def run(folder: Path, *options: str) -> tuple[list[str], str]:
    """Return the tests that were started, in order of their names, and the output of the run."""
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(folder / "pytest.ini")]
    done = subprocess.run(
        [*command, "--rootdir", str(folder), "--dist", "loadfile", *options],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return sorted((folder / "ran").read_text(encoding="utf-8").split()), done.stdout + done.stderr


def save(folder: Path, name: str, tests: int, crashing: int | None = None) -> None:
    content = CRASHING.format(name=name, tests=tests, crashing=crashing)
    (folder / f"test_{name}.py").write_text(content, encoding="utf-8")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("crashing", [0, 1, 2, 3])
def test_each_test_runs_once_beside_a_crash(tmp_path: Path, workers: int, crashing: int) -> None:
    sizes = {"a": 3, "b": 4, "c": 1, "d": 1}
    for name, size in sizes.items():
        save(tmp_path, name, size, crashing if name == "b" else None)
    ran, output = run(tmp_path, "--numprocesses", str(workers))
    assert ran == sorted(f"{name}{number}" for name, size in sizes.items() for number in range(size)), output
    assert f"crashed while running 'test_b.py::test_some[{crashing}]'" in output
    assert "1 failed, 8 passed" in output


def test_run_ends_after_two_crashes(tmp_path: Path) -> None:
    save(tmp_path, "a", 1, 0)
    save(tmp_path, "b", 2, 1)
    ran, output = run(tmp_path, "--numprocesses", "1", "--max-worker-restart", "4")
    assert ran == ["a0", "b0", "b1"]
    assert "2 failed, 1 passed" in output


def test_files_of_page_run_in_two_groups() -> None:
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "web").glob("test_*.py"))
    assert {scope_of(file) for file in files} == {SHARED_SITE, SHARED_PLAYGROUND}
    assert scope_of("tests/web/test_playground.py") == scope_of("tests/web/test_in_browser.py") == SHARED_PLAYGROUND
    assert scope_of("tests/web/test_playground_images.py") == SHARED_SITE
