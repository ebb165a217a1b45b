"""Start servers as forks of a process that has imported their modules: see tests.support.fork_server."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Protocol

ROOT = Path(__file__).parents[2]

# Without ONNX Runtime: its import starts a thread, which does not exist in a fork.
_MODULES = (
    "app.cli.commands",
    "app.server.process",
    "app.cli.model_paths",
    "app.protocols.openai.routes",
    "app.protocols.open_inference.predict_codec",
)
_TORCH_MODULES = (
    "frameworks.pytorch.registry",
    "frameworks.pytorch.loader",
    "frameworks.pytorch.generation.loading.generator",
)
_CONNECT_WITHIN_S = 30.0


class Process(Protocol):
    """The part of subprocess.Popen that tests use."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class ForkedProcess:
    """A server that was forked; it is used as a subprocess.Popen."""

    def __init__(self, status: socket.socket) -> None:
        """`status`: receives the process ID and the exit status."""
        self._status = status
        self._lines = status.makefile("rb")
        self.returncode: int | None = None
        line = self._lines.readline()
        if not line:
            raise RuntimeError("the fork server ended; its traceback is in the standard error of the tests")
        self.pid = int(line)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._status], [], [], left_s)[0]:
                raise subprocess.TimeoutExpired("forked server", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Send the signal unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_server(
    arguments: Sequence[str], environ: dict[str, str], cwd: Path, needs_torch: bool, is_gated: bool
) -> tuple[ForkedProcess, IO[bytes]]:
    """Start `serve` with these arguments; return its process and the stream of its standard error."""
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    request = {
        "arguments": list(arguments),
        "environ": environ,
        "cwd": str(cwd),
        "needs_torch": needs_torch,
        "is_gated": is_gated,
    }
    with theirs:
        socket.send_fds(_requests(), [json.dumps(request).encode()], [write, theirs.fileno()])
        os.close(write)
    return ForkedProcess(ours), os.fdopen(read, "rb")


@cache
def _requests() -> socket.socket:
    """Return a connection to the fork server of this run, which ends with the last process that has one.

    The processes of pytest-xdist share it: each would import the modules again, which takes 3 s of CPU time.
    """
    # In the abstract namespace: nothing is left of the address when the fork server ends.
    address = "\0roundhouse-fork-server-" + os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until_s = time.monotonic() + _CONNECT_WITHIN_S
    while True:
        process = _start(address)
        try:
            connection.connect(address)
            break
        except ConnectionRefusedError:  # another process has bound it, and does not listen yet
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)

    def stop() -> None:
        connection.close()
        if process is not None:
            process.wait()

    atexit.register(stop)
    return connection


def _start(address: str) -> "subprocess.Popen[bytes] | None":
    """Start the fork server, unless another process has."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:
            return None
        listener.listen()
        modules = (*_MODULES, "--with-torch", *_TORCH_MODULES)
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(listener.fileno()), *modules],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
        )
