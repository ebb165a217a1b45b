"""Run a module of this project in a process of its own, which ends with this one."""

import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path

from frameworks.core.machine_code.code_files import end_process

_ROOT = Path(__file__).resolve().parents[3]
_REASON_CHARACTERS = 300


def module_command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a module."""
    # -P: a file of the working directory must not hide a module.
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """Return the environment in which that command finds this project, installed or not."""
    environment = dict(os.environ)
    if Path(sysconfig.get_path("purelib")) != _ROOT:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
    return environment


def run_module(module: str, arguments: Sequence[str], timeout_s: float) -> None:
    """Run a module that calls `end_with_parent`. Raises OSError, RuntimeError with the last line that it printed."""
    # Its own session: Ctrl-C in a terminal is for the server.
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        module_command(module, arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=module_environment(),
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        timer = threading.Timer(timeout_s, process.kill)
        timer.daemon = True
        timer.start()
        printed = process.stderr.read().decode(errors="replace")
        timer.cancel()
        if process.wait():
            raise RuntimeError(last_line(printed) or f"the process ended with status {process.returncode}")


def last_line(printed: str) -> str:
    """Return the last line that is not empty, which is the reason of a failure."""
    lines = (line.strip() for line in reversed(printed.split("\n")))
    return next(filter(None, lines), "")[:_REASON_CHARACTERS]


def end_with_parent() -> None:
    """End this process when the other one closes its end of the pipe to standard input, also by its own end."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    # Not sys.stdin, whose lock the thread would keep from the end of the interpreter.
    while os.read(0, 1):
        pass
    end_process(1)
