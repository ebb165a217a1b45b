"""Write configs with models in the server and in processes of their own."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.bench.shared.servers import RunningServer


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the config. `lines`: further members of its entry."""

    name: str
    path: Path
    framework: str = "onnx"
    isolated: bool = False
    lines: tuple[str, ...] = ()

    def text(self) -> str:
        isolation = ('isolation = "process"',) if self.isolated else ()
        lines = (f'name = "{self.name}"', f'path = "{self.path}"', *isolation, *self.lines)
        return "\n".join((f"[[models.{self.framework}_models]]", *lines, ""))


def write_config(file: Path, entries: Iterable[Entry]) -> Path:
    """Write the config file of a server with these models; return its path."""
    file.write_text("\n".join(entry.text() for entry in entries), encoding="utf-8")
    return file


def engine_of(server: RunningServer, model: str) -> psutil.Process:
    """Return the process of an isolated model. Raises RuntimeError if there is none."""
    for process in psutil.Process(server.process.pid).children():
        if process.name() == f"rh:{model}":
            return process
    raise RuntimeError(f"the server has no process rh:{model}")
