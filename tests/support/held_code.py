"""Hold the process that compiles, as at the first start on a machine: the code is there when the gate is open."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiling import background

_WAIT_S = 120.0
# Ends like the real one when its standard input is closed.
_CHILD = """
import os, sys, threading, time
from pathlib import Path
def end():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=end, daemon=True).start()
gate, pid = map(Path, sys.argv[1:3])
pid.with_suffix(".new").write_text(str(os.getpid()))
pid.with_suffix(".new").rename(pid)
while not gate.exists():
    time.sleep(0.01)
sys.exit(gate.read_text() or 0)
"""


class CodeGate:
    """No code is in the cache until the gate is open."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`folder`: an empty one."""
        self._gate, self._pid = folder / "gate", folder / "pid"
        self.requested: list[tuple[Path, list[str]]] = []
        """The folder and the parts of each process."""
        missing = code_cache.missing

        def held(functions: Iterable[str]) -> list[str]:
            return missing(functions) if self._gate.exists() and not self._gate.read_text() else list(functions)

        monkeypatch.setattr(code_cache, "missing", held)
        monkeypatch.setattr(background, "command", self._command)
        monkeypatch.setattr(code_cache, "use_temporary_folder", lambda: folder)

    def open(self, failure: str = "") -> None:
        """Let the process end. `failure`: what it prints if it fails."""
        (self._gate.with_suffix(".new")).write_text(failure, encoding="utf-8")
        self._gate.with_suffix(".new").rename(self._gate)

    def pid(self) -> int:
        """Wait until the process runs; return its ID."""
        wait_until(self._pid.exists)
        return int(self._pid.read_text())

    def _command(self, folder: Path, parts: Sequence[str]) -> list[str]:
        self.requested.append((folder, list(parts)))
        return [sys.executable, "-c", _CHILD, str(self._gate), str(self._pid)]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for another thread or process."""
    ends_s = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < ends_s, "it did not happen"
        time.sleep(0.01)
