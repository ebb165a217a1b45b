"""Let another process compile the parts that a model needs, while this one loads and serves."""

import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import structlog

from frameworks.core.machine_code.processes import last_line, module_command, module_environment
from frameworks.core.progress import Work, begin
from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiling.parts import missing_parts
from frameworks.pytorch.compiling.process import NOT_KEPT

log = structlog.get_logger(__name__)

TIMEOUT_S = 1800.0
"""A process of low priority beside a busy server may take minutes for what takes 20 seconds alone."""
_MODULE = "frameworks.pytorch.compiling.process"


class CompilationFailed(Exception):
    """The code could not be made, for the reason in the message."""


class _NotKept(CompilationFailed):
    """The folder does not take the code."""


def compile_parts(parts: Collection[str], model: str) -> "Future[None] | None":
    """Have parts compiled that are not in the cache; None where all of them are. `model`: its name, for the progress.

    The future is done when the code can be read from the cache, or has CompilationFailed. Its callbacks run on the
    thread that waits for the processes.
    """
    missing = missing_parts(parts)
    return _compiler().add(parts, missing, model) if missing else None


@dataclass(frozen=True, slots=True)
class _Job:
    """The code of one model. `left`: its parts that are not compiled yet."""

    parts: Collection[str]
    left: set[str]
    work: Work
    future: "Future[None]"

    def count(self, part: str) -> None:
        if part in self.left:
            self.left.discard(part)
            self.work.step()


class _Compiler:
    """One process after the other. Any thread may add work."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        # Of the queue, with the one that runs.
        self._jobs: list[_Job] = []
        # A daemon: the end of the server closes the pipe to the process, which ends by that.
        threading.Thread(target=self._run, name="compiler", daemon=True).start()

    def add(self, parts: Collection[str], missing: Collection[str], model: str) -> "Future[None]":
        """`missing`: those of the parts that are not in the cache."""
        work = begin("compile", model)
        work.phase("kernels for this CPU", len(missing), "kernels")
        job = _Job(parts, set(missing), work, Future())
        self._jobs.append(job)
        self._queue.put(job)
        return job.future

    def _run(self) -> None:
        while True:
            self._do(self._queue.get())

    def _do(self, job: _Job) -> None:
        failure: Exception | None = None
        try:
            _compile(job.parts, self._count)
        except CompilationFailed as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - handed to the models that wait
            failure = CompilationFailed(f"{type(error).__name__}: {error}")
        job.work.has_failed = failure is not None
        self._jobs.remove(job)
        job.work.end()
        if failure is None:
            job.future.set_result(None)
        else:
            job.future.set_exception(failure)

    def _count(self, part: str) -> None:
        for job in list(self._jobs):
            job.count(part)


@cache
def _compiler() -> _Compiler:
    return _Compiler()


def _compile(parts: Collection[str], on_part: Callable[[str], None]) -> None:
    """Compile in the usual folder; where that fails, in one of this process. `on_part`: called with each part that is
    compiled, also by another process. Raises CompilationFailed, OSError.
    """
    names = missing_parts(parts)
    for part in set(parts) - set(names):
        on_part(part)
    if not names:
        return  # compiled for another model meanwhile
    log.info("compiling kernels for this CPU", parts=names)
    started_s = time.monotonic()
    try:
        _run_process(code_cache.code_folder(), names, on_part)
    except _NotKept as error:
        if code_cache.is_temporary():
            raise
        log.warning(
            "compiled code could not be kept: each start compiles it again",
            error=str(error),
            remedy="make room in models.cache_dir",
        )
        _run_process(code_cache.use_temporary_folder(), names, on_part)
    log.info("kernels compiled", parts=names, seconds=round(time.monotonic() - started_s, 1))


def _run_process(folder: Path, parts: Sequence[str], on_part: Callable[[str], None]) -> None:
    with tempfile.TemporaryFile() as printed:
        # Its own session: Ctrl-C in a terminal is for the server.
        with subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command(folder, parts),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            env=module_environment(),
            start_new_session=True,
        ) as process:
            timer = threading.Timer(TIMEOUT_S, process.kill)
            timer.daemon = True
            started_s = time.monotonic()  # before the timer: a busy machine may delay this thread
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                on_part(line.decode(errors="replace").strip())
            status = process.wait()
            timer.cancel()
        if status < 0 and time.monotonic() - started_s >= TIMEOUT_S:
            raise CompilationFailed(f"it took longer than {TIMEOUT_S:g} s")
        if status:
            printed.seek(0)
            last = last_line(printed.read().decode(errors="replace"))
            error = _NotKept if status == NOT_KEPT else CompilationFailed
            raise error(last or f"the process ended with status {status}")


def command(folder: Path, parts: Sequence[str]) -> list[str]:
    """Return the command that compiles. It ends when its standard input is closed."""
    return module_command(_MODULE, [str(folder), *parts])
