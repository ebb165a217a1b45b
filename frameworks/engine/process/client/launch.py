"""Start an engine process, report why it ended, and clean up after it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from frameworks.engine.process.client import process_registry
from frameworks.engine.process.client.output import OutputLines, OutputReader
from frameworks.engine.process.exit_reason import ExitReason
from frameworks.engine.process.wire.arguments import TERMINAL_SIGNALS, StartArguments

_POLL_S = 0.05
# The folder of the packages: the process must import the same ones, wherever it is started.
_ROOT = Path(__file__).resolve().parents[4]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How an engine process is started."""

    model: str
    module: str = "frameworks.engine.process.host.child"
    """Its `__main__` part calls `startup.prepare` first."""
    cpus: frozenset[int] | None = None
    """The CPUs it may use; None: those of the server."""
    max_process_memory_bytes: int | None = None
    niceness: int = 0
    """Added to the niceness of the server.

    With 0 the process gets its share of a core beside busy processes. Linux lets a thread that wakes go first only if
    it has used less than its share: beside two busy processes on one core, the event loop of the server waited for
    0.19 s of each second with 5, for 0.09 s with 10, for 0.05 s with 15. A busy event loop leaves a process on its
    core 26, 11 and 5 % of the core. A process cannot raise its priority again.
    """
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Changes to the server's environment variables; None removes one."""
    log_level: str = "info"


class EngineProcess:
    """A process that was started by `launch`. All methods but `kill` belong to the event loop that launched it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, output_fd: int, model: str) -> None:
        """`output_fd`: the reading end of the pipe that the process prints to; it is closed with the process."""
        self.pid = process.pid
        self.connection = connection
        """The server's end of the control socket. The caller closes it."""
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[ExitReason] = self._loop.create_future()
        self._killed_for: str | None = None
        self._lines = OutputLines(model)
        self._output = OutputReader(output_fd, self._lines, self._loop)
        self._pidfd = _open_pidfd(self.pid)
        self._timer: asyncio.TimerHandle | None = None
        process_registry.add(self.pid, self.kill)
        if self._pidfd is None:
            self._poll()
        else:
            self._loop.add_reader(self._pidfd, self._reap)

    @property
    def exit_reason(self) -> ExitReason | None:
        """Why the process ended; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    @property
    def native_output(self) -> str:
        """The last 4 KiB that the process printed besides log lines."""
        return self._lines.native_output

    async def wait_ended(self) -> ExitReason:
        """Wait until the process has ended and was reaped, and its output was read."""
        return await asyncio.shield(self._ended)

    def kill(self, reason: str) -> None:
        """End the process at once. Harmless if it has ended; the first `reason` is kept.

        Signal handlers of the main thread may call it. The process ID is never signalled once it was reaped, as another
        process may have got it.
        """
        if self._ended.done():
            return
        self._killed_for = self._killed_for or reason
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            else:
                self._process.kill()
        except ProcessLookupError:  # it has ended, and is not yet reaped
            pass

    def _poll(self) -> None:
        """Look for the end at intervals, where the kernel has no descriptor for a process."""
        if not self._reap():
            self._timer = self._loop.call_later(_POLL_S, self._poll)

    def _reap(self) -> bool:
        """Return True if the process has ended."""
        returncode = self._process.poll()
        if returncode is None:
            return False
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            pidfd, self._pidfd = self._pidfd, None
            os.close(pidfd)
        self._output.close()
        process_registry.remove(self.pid)
        self._ended.set_result(ExitReason.of(returncode, self._killed_for, self._lines.native_output))
        return True


def launch(options: LaunchOptions, inherited_fds: Sequence[int] = ()) -> EngineProcess:
    """Start an engine process; return without a wait for its first step.

    Call it on the event loop's thread, and let that thread last as long as the server: Linux ends the process with the
    thread that started it. `inherited_fds` are the same descriptors in the process, and stay open here. Raises OSError
    if no process or descriptor is left.
    """
    with ExitStack() as on_failure, ExitStack() as always:
        connection, theirs = socket.socketpair()
        on_failure.enter_context(connection)
        always.enter_context(theirs)
        output_fd, printed_fd = os.pipe()
        on_failure.callback(os.close, output_fd)
        always.callback(os.close, printed_fd)
        with _no_stop_signals():
            process = _spawn(options, (theirs.fileno(), *inherited_fds), printed_fd)
        on_failure.pop_all()
    return EngineProcess(process, connection, output_fd, options.model)


def _spawn(options: LaunchOptions, fds: tuple[int, ...], printed_fd: int) -> subprocess.Popen[bytes]:
    arguments = StartArguments(
        model=options.model,
        parent_pid=os.getpid(),
        fds=fds,
        niceness=options.niceness,
        cpus=options.cpus,
        max_process_memory_bytes=options.max_process_memory_bytes,
        log_level=options.log_level,
    )
    # -P: a file of the working directory must not hide a module.
    words = [sys.executable, "-P", "-m", options.module, *arguments.to_words()]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        words,
        stdin=subprocess.DEVNULL,
        stdout=printed_fd,
        stderr=subprocess.STDOUT,
        env=_environment(options.environment),
        pass_fds=fds,
    )


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    values: dict[str, str | None] = {**os.environ, **changes}
    environment = {name: value for name, value in values.items() if value is not None}
    if Path(sysconfig.get_path("purelib")) != _ROOT:
        paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


@contextmanager
def _no_stop_signals() -> Iterator[None]:
    """Hold back signals: a process that starts inherits this, and is not ended before it ignores them.

    Ctrl-C in a terminal is a signal to all processes, and the server must answer its requests before the engines end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable when the process has ended; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS, or a kernel or container that does not permit it
        return None
