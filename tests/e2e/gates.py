"""Graphs whose runs a test holds: its checks need no run that takes long."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.gated_server import GATE

_identifiers = itertools.count(1)


class RunGate:
    """Hold the runs of a graph in a server that was started with `gated=True`. The gate is open at first."""

    def __init__(self, model_folder: Path) -> None:
        """`model_folder`: where the graph's model.onnx lies."""
        self._file = model_folder / GATE
        self._identifier = self._allowed = 0

    @contextmanager
    def closed(self) -> Iterator["RunGate"]:
        """Hold each run that begins in the block, until the block ends."""
        self._identifier, self._allowed = next(_identifiers), 0
        self._write()
        try:
            yield self
        finally:
            self.open()

    def allow_one(self) -> None:
        """Let one more run pass."""
        self._allowed += 1
        self._write()

    def open(self) -> None:
        """Let all runs pass."""
        self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        """Write whole files only: the server reads at any time."""
        fresh = self._file.with_suffix(".fresh")
        fresh.write_text(f"{self._identifier} {self._allowed}", encoding="utf-8")
        fresh.replace(self._file)
