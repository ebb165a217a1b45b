"""The command line runs in Python's UTF-8 mode."""

import os
import sys
from typing import Any

import pytest

from app.cli.utf8 import ensure_utf8


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the programs that were to replace this process."""
    programs: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *program: programs.append(program))
    return programs


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1"])
def test_other_encoding_starts_process_again(
    encoding: str, executed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    monkeypatch.setenv("PYTHONUTF8", "0")
    ensure_utf8()
    ((program, arguments, environ),) = executed
    assert (program, arguments, environ["PYTHONUTF8"]) == (sys.executable, sys.orig_argv, "1")
    monkeypatch.setenv("PYTHONUTF8", "1")
    ensure_utf8()
    assert len(executed) == 1


def test_utf8_keeps_process(executed: list[Any]) -> None:
    ensure_utf8()
    assert not executed
