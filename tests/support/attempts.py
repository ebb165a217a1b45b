"""Run pytest, then run the few tests that failed a second time, alone.

Tests of servers and processes run beside each other, and a busy machine can delay one beyond any limit. A test that
passes alone is reported as unstable, and the run passes. A real defect fails both times. Many failures are never run
again. An attempt that takes longer than LIMIT_S seconds is interrupted, and names the tests that were still running.

Usage: python -m tests.support.attempts [OPTION...] [-- PATH...], with the options of pytest.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

MOST_FAILURES = 5
"""With more failed tests, the first attempt decides."""
PLUGIN = "tests.support.attempts"
REPORT = "FAILED_TESTS_FILE"
"""The environment variable that names the file for the failed tests."""
LIMIT_S = 4200.0
"""So that a report of a run that hangs comes before CI ends it. Nightly runs have no limit."""
LIMIT = "TESTS_LIMIT_S"
"""The environment variable that replaces LIMIT_S."""
_ENDS_WITHIN_S = 60.0

_running: dict[str, None] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
    """Remember a test that runs; with pytest-xdist in the process that distributes the tests."""
    _running[nodeid] = None


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Forget a test that has ended."""
    _running.pop(nodeid, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the node ids of the failed tests, as this module is a plugin of both attempts."""
    if _running:
        terminalreporter.write_line("these tests were still running:")
        for name in _running:
            terminalreporter.write_line(f"  {name}")
    reports = [each for kind in ("failed", "error") for each in terminalreporter.stats.get(kind, [])]
    names = dict.fromkeys(str(getattr(each, "nodeid", "")) for each in reports)
    if path := os.environ.get(REPORT):
        Path(path).write_text(json.dumps(list(names)), encoding="utf-8")


def run(options: Sequence[str], paths: Sequence[str]) -> int:
    """Return the exit code of pytest: of the second attempt, if there was one."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "failed.json"
        code = _pytest([*options, *paths], report)
        if code != pytest.ExitCode.TESTS_FAILED:
            return code
        failed = json.loads(report.read_text(encoding="utf-8"))
    if not all(failed) or len(failed) > MOST_FAILURES:
        return code
    print(f"\n{len(failed)} tests failed and run again, alone:", *failed, sep="\n", flush=True)
    code = _pytest([*options, "--numprocesses", "0", *failed], None)
    if code == pytest.ExitCode.OK:
        print("unstable: these tests failed once and passed alone; mend them:", *failed, sep="\n", flush=True)
    return code


def _pytest(arguments: Sequence[str], report: Path | None) -> int:
    environ = dict(os.environ)
    environ.pop(REPORT, None)
    if report is not None:
        environ[REPORT] = str(report)
    limit_s = None if "--nightly" in arguments else float(os.environ.get(LIMIT, LIMIT_S))
    with subprocess.Popen([sys.executable, "-m", "pytest", "-p", PLUGIN, *arguments], env=environ) as pytest_process:
        try:
            return pytest_process.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"\nthe tests took longer than {limit_s:.0f} s", flush=True)
            pytest_process.send_signal(signal.SIGINT)
        try:
            pytest_process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            pytest_process.kill()
        return pytest.ExitCode.INTERRUPTED


if __name__ == "__main__":
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    sys.exit(run(arguments[:cut], arguments[cut + 1 :]))
