"""Let another process compile the parts that a model needs, while this one loads and serves."""

import os
import queue
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import structlog

from frameworks.pytorch.compiled import code_cache
from frameworks.pytorch.compiling.parts import missing_parts
from frameworks.pytorch.compiling.process import NOT_KEPT

log = structlog.get_logger(__name__)

TIMEOUT_S = 1800.0
"""A process of low priority beside a busy server may take minutes for what takes 20 seconds alone."""
_ROOT = Path(__file__).resolve().parents[3]
_MODULE = "frameworks.pytorch.compiling.process"
_REASON_CHARACTERS = 300


class CompilationFailed(Exception):
    """The code could not be made, for the reason in the message."""


class _NotKept(CompilationFailed):
    """The folder does not take the code."""


def compile_parts(parts: Collection[str]) -> "Future[None] | None":
    """Have parts compiled that are not in the cache; None where all of them are.

    The future is done when the code can be read from the cache, or has CompilationFailed. Its callbacks run on the
    thread that waits for the processes.
    """
    if not missing_parts(parts):
        return None
    return _compiler().add(parts)


class _Compiler:
    """One process after the other. Any thread may add work."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Collection[str], Future[None]]] = queue.SimpleQueue()
        # A daemon: the end of the server closes the pipe to the process, which ends by that.
        threading.Thread(target=self._run, name="compiler", daemon=True).start()

    def add(self, parts: Collection[str]) -> "Future[None]":
        future: Future[None] = Future()
        self._work.put((parts, future))
        return future

    def _run(self) -> None:
        while True:
            parts, future = self._work.get()
            try:
                _compile(parts)
            except CompilationFailed as error:
                future.set_exception(error)
            except Exception as error:  # noqa: BLE001 - handed to the models that wait
                future.set_exception(CompilationFailed(f"{type(error).__name__}: {error}"))
            else:
                future.set_result(None)
            del future


@cache
def _compiler() -> _Compiler:
    return _Compiler()


def _compile(parts: Collection[str]) -> None:
    """Compile in the usual folder; where that fails, in one of this process. Raises CompilationFailed, OSError."""
    names = missing_parts(parts)
    if not names:
        return  # compiled for another model meanwhile
    log.info("compiling products for this CPU", parts=names)
    started_s = time.monotonic()
    try:
        _run_process(code_cache.code_folder(), names)
    except _NotKept as error:
        if code_cache.is_temporary():
            raise
        log.warning(
            "compiled code could not be kept: each start compiles it again",
            error=str(error),
            remedy="make room in models.cache_dir",
        )
        _run_process(code_cache.use_temporary_folder(), names)
    log.info("products compiled", parts=names, seconds=round(time.monotonic() - started_s, 1))


def _run_process(folder: Path, parts: Sequence[str]) -> None:
    with tempfile.TemporaryFile() as printed:
        # Its own session: Ctrl-C in a terminal is for the server.
        with subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command(folder, parts),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=printed,
            env=_environment(),
            start_new_session=True,
        ) as process:
            try:
                status = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise CompilationFailed(f"it took longer than {TIMEOUT_S:g} s") from None
        if status:
            printed.seek(0)
            lines = printed.read().decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            error = _NotKept if status == NOT_KEPT else CompilationFailed
            raise error(last[:_REASON_CHARACTERS] or f"the process ended with status {status}")


def command(folder: Path, parts: Sequence[str]) -> list[str]:
    """Return the command that compiles. It ends when its standard input is closed."""
    # -P: a file of the working directory must not hide a module.
    return [sys.executable, "-P", "-m", _MODULE, str(folder), *parts]


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if Path(sysconfig.get_path("purelib")) != _ROOT:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
    return environment
