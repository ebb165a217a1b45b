"""Signals to a real `roundhouse bench` process: partial results after the first, an end at once after the second."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import ROOT, WAIT_S, RunningServer, wait_until

pytestmark = pytest.mark.extended

SENT = 300


@contextmanager
def bench(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command with pipes for both outputs; end it with the block."""
    command = [sys.executable, "-m", "app", "bench", *arguments]
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=own, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_load(server: RunningServer) -> None:
    """Wait for the responses to some hundred requests."""
    before = server.sample("roundhouse_requests_total", model="digits")
    wait_until(lambda: server.sample("roundhouse_requests_total", model="digits") >= before + SENT)


def endless(server: RunningServer, protocol: str = "native") -> list[str]:
    """Return the arguments of a run that only a signal ends."""
    url = f"127.0.0.1:{server.grpc_port}" if protocol == "grpc" else server.url
    return ["--url", url, "--protocol", protocol, "--model", "digits", "--concurrency", "2", "--duration", "3600"]


@pytest.mark.parametrize(
    ("protocol", "number"), [("native", signal.SIGINT), ("native", signal.SIGTERM), ("grpc", signal.SIGINT)]
)
def test_first_signal_writes_result_so_far(
    server: RunningServer, tmp_path: Path, protocol: str, number: signal.Signals
) -> None:
    files = tmp_path / "result.json", tmp_path / "result.html"
    with bench(*endless(server, protocol), "--json", str(files[0]), "--html", str(files[1])) as process:
        wait_for_load(server)
        process.send_signal(number)
        printed, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    found = json.loads(files[0].read_text(encoding="utf-8"))
    assert found["ended_by"] == "interrupt"
    # Requests of the last moments may have no response.
    assert found["requests"]["succeeded"] >= SENT - 2
    assert found["requests"]["unanswered"] <= 2
    assert found["requests"]["failed"] == 0
    assert found["load"]["duration_s"] == 3600 > found["elapsed_s"] > 0
    assert files[1].read_text(encoding="utf-8").count("<svg") == 3
    assert "ended by interrupt" in printed
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_at_once(server: RunningServer, tmp_path: Path, number: signal.Signals) -> None:
    # No process reads this file, so that writing the result blocks.
    fifo = tmp_path / "result.json"
    os.mkfifo(fifo)
    with bench(*endless(server), "--json", str(fifo)) as process:
        wait_for_load(server)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert any("ended by interrupt" in line for line in process.stdout)
        process.send_signal(number)
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors


def test_signal_before_run_ends_quietly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        with bench("--url", f"http://127.0.0.1:{silent.getsockname()[1]}") as process:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(4096).startswith(b"GET /models ")
                process.send_signal(signal.SIGINT)
                printed, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, printed, errors) == (130, "", "")
