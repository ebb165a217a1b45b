"""Server processes for the bench: started on a core of their own, asked over one kept connection, stopped."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

_START_LIMIT_S = 120.0
_POLL_S = 0.01


@dataclass(slots=True)
class RunningServer:
    """A server process and a connection to it."""

    process: subprocess.Popen[str]
    port: int
    started_s: float
    connection: http.client.HTTPConnection

    def post(self, path: str, body: bytes) -> Any:
        """The decoded answer; raises where it is no 200."""
        self.connection.request("POST", path, body, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {content[:500]!r}")
        return json.loads(content)

    def cpu_s(self) -> float:
        """CPU seconds that the process has used, user and system."""
        times = psutil.Process(self.process.pid).cpu_times()
        used_s: float = times.user + times.system
        return used_s


@contextmanager
def roundhouse(models: list[str], core: int | None = 0) -> Iterator[RunningServer]:
    """Roundhouse with these model paths; ready when the block begins."""
    started_s = time.perf_counter()
    process = _start([sys.executable, "-m", "app", "serve", *models, "--port", "0"], core)
    try:
        assert process.stderr is not None
        port = next(json.loads(line)["port"] for line in process.stderr if '"listening"' in line)
        server = _connect(process, port, started_s)
        _wait(server, "/health/ready")
        yield server
    finally:
        _stop(process)


@contextmanager
def plain_fastapi(model: str, port: int, core: int | None = 0) -> Iterator[RunningServer]:
    """The endpoint that one would write by hand: `tests.bench.plain_fastapi`."""
    started_s = time.perf_counter()
    process = _start([sys.executable, "-m", "tests.bench.plain_fastapi", model, str(port)], core)
    try:
        server = _connect(process, port, started_s)
        _wait(server, "/health")
        yield server
    finally:
        _stop(process)


def _start(command: list[str], core: int | None) -> subprocess.Popen[str]:
    cores = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})  # inherited by the child, and taken back here
    try:
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        os.sched_setaffinity(0, cores)


def _connect(process: subprocess.Popen[str], port: int, started_s: float) -> RunningServer:
    return RunningServer(process, port, started_s, http.client.HTTPConnection("127.0.0.1", port, timeout=600))


def _wait(server: RunningServer, path: str) -> None:
    while time.perf_counter() - server.started_s < _START_LIMIT_S:
        try:
            server.connection.request("GET", path)
            answer = server.connection.getresponse()
            answer.read()
            if answer.status == 200:
                return
        except OSError:
            server.connection.close()
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.process.returncode}")
        time.sleep(_POLL_S)
    raise TimeoutError(f"no 200 from {path} within {_START_LIMIT_S} s")


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
