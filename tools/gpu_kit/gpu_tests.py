"""Run the tests that are marked `gpu`."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tools.bench.shared.table import Row

ROOT = Path(__file__).resolve().parents[2]
MARK = "pytest.mark.gpu"


def run_tests(device: str) -> Iterator[Row]:
    """Run every `gpu` test, and count them. `device` cpu: the other tests of the same files.

    Raises RuntimeError, with the end of the output, if a test failed or none ran.
    """
    expression = "gpu" if device == "cuda" else "not gpu"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", expression, "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", *files_with_gpu_tests()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        print(output)
        counts = _counts(report)
    yield Row(
        f'tests marked "{expression}" on {device}',
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped",
        "0 failed",
    )
    if done.returncode != 0 or not counts["passed"]:
        raise RuntimeError(f"pytest ended with status {done.returncode}: {'; '.join(_failures(output))}")


def files_with_gpu_tests() -> list[str]:
    """Return the files that hold `gpu` tests: to import all files would take longer than their tests."""
    found = (file for file in sorted((ROOT / "tests").rglob("test_*.py")) if MARK in file.read_text(encoding="utf-8"))
    return [str(file.relative_to(ROOT)) for file in found]


def _counts(report: Path) -> dict[str, int]:
    if not report.is_file():
        return {"passed": 0, "failed": 0, "skipped": 0}
    [suite] = ElementTree.parse(report).getroot().iter("testsuite")
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    skipped = int(suite.get("skipped", 0))
    return {"passed": int(suite.get("tests", 0)) - failed - skipped, "failed": failed, "skipped": skipped}


def _failures(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) .*$", output, re.MULTILINE)[:20]
