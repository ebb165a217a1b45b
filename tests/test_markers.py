"""The Makefile's list of the files that hold `isa` tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARK = "pytest.mark.isa"
"""The text by which the Makefile finds the files."""


def test_makefile_finds_every_isa_test(request: pytest.FixtureRequest) -> None:
    """In a run of the whole suite, every test with the marker is in a file that contains the text."""
    assert f"grep -rlF --include='test_*.py' {MARK} tests" in (ROOT / "Makefile").read_text(encoding="utf-8")
    files = {item.path for item in request.session.items if item.get_closest_marker("isa")}
    missed = [str(file) for file in files if MARK not in file.read_text(encoding="utf-8")]
    assert not missed, f"write the marker as {MARK} in {missed}"
