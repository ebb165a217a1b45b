"""Start server processes on cores of their own, send requests over one connection, stop them."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from tools.bench.shared.cores import SERVER_CORES, on_cores

ROOT = Path(__file__).resolve().parents[3]
_START_LIMIT_S = 300.0
# Of all code of a language model, on one core of a slow machine.
_KERNELS_LIMIT_S = 600.0
_KERNELS_POLL_S = 0.5
_STOP_LIMIT_S = 15.0
_POLL_S = 0.01


@dataclass(slots=True)
class RunningServer:
    """A server process and a connection to it."""

    process: subprocess.Popen[Any]
    port: int
    started_s: float
    connection: http.client.HTTPConnection

    def post(self, path: str, body: bytes) -> Any:
        """Return the decoded answer. Raises RuntimeError unless it is 200."""
        self.connection.request("POST", path, body, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {content[:500]!r}")
        return json.loads(content)

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process and its children, user and system."""
        used_s = 0.0
        for process in _with_children(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used_s += times.user + times.system
        return used_s

    def resident_bytes(self) -> int:
        """Return the resident memory of the process without its children."""
        resident: int = psutil.Process(self.process.pid).memory_info().rss
        return resident

    def pause(self) -> None:
        """Suspend the server until `awake`: some servers poll while idle and would slow the others."""
        for process in _with_children(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Resume a paused server in the block."""
        _resume(self.process.pid)
        try:
            yield
        finally:
            self.pause()


@contextmanager
def roundhouse(
    models: Sequence[str] = (),
    config: Path | None = None,
    cores: frozenset[int] | None = SERVER_CORES,
    environment: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> Iterator[RunningServer]:
    """Start Roundhouse with these model paths or this config file. When the block begins, it is ready, and no model
    waits for kernels that are being compiled.

    `root`: the checkout whose code runs.
    """
    arguments = [*models] if config is None else ["--config", str(config)]
    command = [sys.executable, "-m", "app", "serve", *arguments, "--port", "{port}"]
    with started(command, "/health/ready", cores, environment, root) as server:
        _wait_for_kernels(server)
        yield server


@contextmanager
def started(
    command: Sequence[str],
    ready_path: str,
    cores: frozenset[int] | None = SERVER_CORES,
    environment: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> Iterator[RunningServer]:
    """Run a command with a free port for `{port}`; it answers `ready_path` when the block begins.

    Raises RuntimeError, with the end of its output, if it ends or is not ready in time. `cores` None: all.
    """
    port = free_port()
    # Not a pipe: it would fill up, and a server with a long log would block.
    with tempfile.TemporaryFile() as output:
        started_s = time.perf_counter()
        arguments = [part.replace("{port}", str(port)) for part in command]
        process = _start(arguments, cores, {"PYTHONPATH": str(root), **(environment or {})}, output, root)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            server = RunningServer(process, port, started_s, connection)
            try:
                _wait(server, ready_path)
            except RuntimeError as error:
                raise RuntimeError(f"{error}: {_end_of(output)}") from None
            yield server
        finally:
            _stop(process)


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    command: list[str], cores: frozenset[int] | None, environment: Mapping[str, str], output: IO[bytes], root: Path
) -> subprocess.Popen[bytes]:
    variables = {**os.environ, **environment}
    with on_cores(cores or frozenset(os.sched_getaffinity(0))):
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=root)


def _wait(server: RunningServer, path: str) -> None:
    while time.perf_counter() - server.started_s < _START_LIMIT_S:
        try:
            server.connection.request("GET", path)
            answer = server.connection.getresponse()
            answer.read()
            if answer.status == 200:
                return
        except (OSError, http.client.HTTPException):
            server.connection.close()
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.process.returncode}")
        time.sleep(_POLL_S)
    raise RuntimeError(f"no 200 from {path} within {_START_LIMIT_S:.0f} s")


def _wait_for_kernels(server: RunningServer) -> None:
    """Return when no model that the caller may see waits for kernels. Raises RuntimeError after _KERNELS_LIMIT_S."""
    started_s = time.perf_counter()
    while time.perf_counter() - started_s < _KERNELS_LIMIT_S:
        server.connection.request("GET", "/models")
        answer = server.connection.getresponse()
        content = answer.read()
        if answer.status != 200 or not any(each.get("awaits_kernels") for each in json.loads(content)["models"]):
            return
        time.sleep(_KERNELS_POLL_S)
    raise RuntimeError(f"kernels were not compiled within {_KERNELS_LIMIT_S:.0f} s")


def _end_of(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace").strip()[-500:]


def _with_children(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resume(pid: int) -> None:
    for process in _with_children(pid):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process by SIGTERM, then kill the rest of it and its children."""
    family = _with_children(process.pid)
    _resume(process.pid)
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_LIMIT_S)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
