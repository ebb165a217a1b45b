"""The log: JSON lines without a terminal, request lines as [logging] requests sets, none for probes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from tests.e2e.configs import DIGITS
from tests.e2e.conftest import Start
from tests.e2e.forks import fork_server
from tests.e2e.load import QUESTION, callers, slow_model, wait_for_inflight
from tests.e2e.server import GRPC_PORT, ROOT, WAIT_S, RunningServer, run_examples, wait_until

IMAGE = {"input_data": [0] * 64}
LINE = {
    "event", "level", "timestamp", "request_id", "method", "path", "status", "total_ms",
    "decode_ms", "queue_ms", "compute_ms", "encode_ms",
}  # fmt: skip


def ask_everything(server: RunningServer) -> None:
    """Send one request of every kind: answered, refused, admin, probe and scrape."""
    ids = {"x-request-id": "answered"}, {"x-request-id": "refused"}, {"x-request-id": "admin"}, {"x-request-id": "lost"}
    server.client.post("/models/digits/infer", json=IMAGE, headers=ids[0])
    server.client.post("/models/digits/infer", json={"text": "a"}, headers=ids[1])
    server.client.get("/models", headers=ids[2])
    server.client.get("/nowhere", headers=ids[3])
    for path in ("/health", "/health/live", "/health/ready", "/metrics"):
        server.client.get(path)


@pytest.mark.parametrize(
    ("requests", "logged"),
    [
        ("all", ["answered", "refused", "admin", "lost"]),
        ("none", []),
        (None, ["refused", "lost"]),
    ],
)
def test_request_lines_follow_setting(requests: str | None, logged: list[str], start: Start) -> None:
    server = start(DIGITS + (f'[logging]\nrequests = "{requests}"\n' if requests else "")).wait_ready()
    ask_everything(server)
    server.stop()
    lines = server.events("request")
    assert [line["request_id"] for line in lines] == logged
    assert all(line.keys() >= LINE for line in lines)


def test_slow_request_logged(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    config = f'{entry}[logging]\nrequests = "slow_and_failed"\nslow_ms = 500\n'
    server = start(config, gated=True).wait_ready()
    server.client.get("/models")
    with callers(server, 1) as many, gate.closed():
        asked = many.ask("slow", **QUESTION)
        wait_for_inflight(server, 1)
        time.sleep(0.5)
        gate.open()
        assert asked.result().status_code == 200
    line = server.wait_for_log("request", path="/models/slow/infer")
    assert (line["model"], line["version"], line["status"]) == ("slow", "1", 200)
    assert line["path"] == "/models/slow/infer"
    assert 500 < line["compute_ms"] <= line["total_ms"]
    # Others are slow only on a machine that is busy with something else.
    assert all(each["total_ms"] >= 500 for each in server.events("request"))
    assert len(server.events("request", path="/models/slow/infer")) == 1


def test_request_line_fields(server: RunningServer) -> None:
    server.client.post("/models/digits/infer", json=IMAGE, headers={"x-request-id": "line-1"})
    server.client.post("/models/digits/infer", json={"text": "a"}, headers={"x-request-id": "line-2"})
    server.client.post("/models/none/infer", json={"text": "a"}, headers={"x-request-id": "line-3"})
    answered = server.wait_for_log("request", request_id="line-1")
    assert answered.keys() == LINE | {"model", "version"}
    assert (answered["method"], answered["path"]) == ("POST", "/models/digits/infer")
    assert (answered["model"], answered["version"], answered["status"]) == ("digits", "1", 200)
    parts = [answered[f"{part}_ms"] for part in ("decode", "queue", "compute", "encode")]
    assert all(part >= 0 for part in parts)
    assert sum(parts) <= answered["total_ms"]
    datetime.fromisoformat(answered["timestamp"])
    refused = server.wait_for_log("request", request_id="line-2")
    assert (refused["status"], refused["code"], refused["model"]) == (400, "invalid_input", "digits")
    lost = server.wait_for_log("request", request_id="line-3")
    assert (lost["status"], lost["code"], lost.get("model")) == (404, "model_not_found", None)


def test_start_up_events(server: RunningServer) -> None:
    assert server.wait_for_log("listening").keys() >= {"host", "port", "pid"}
    assert "cpu" in server.wait_for_log("devices")["devices"][-1]
    digits = server.wait_for_log("model ready", model="digits")
    assert (digits["framework"], digits["device"]) == ("onnx", "cpu")
    assert digits["providers"] == ["CPUExecutionProvider"]
    assert digits["load_s"] >= digits["warm_up_s"] >= 0
    assert server.wait_for_log("model ready", model="minilm")["framework"] == "pytorch"


def test_ready_event_has_lines_that_work(server: RunningServer) -> None:
    assert server.wait_for_log("ready")["docs"] == f"{server.url}/docs"
    answers = run_examples(server)
    assert [line for line, answer in answers if "error" in answer] == []
    paths = [re.findall(r"/(\w+) -H", line) for line, _ in answers[1:]]
    assert sorted(paths) == [["completions"], ["embeddings"], ["infer"], ["infer"], ["rerank"]]


def test_every_log_line_is_json(server: RunningServer) -> None:
    """Libraries in C write nothing either: an error of a graph's run is in the response, not in the log."""
    server.client.post("/models/gather/infer", json={"input_data": [99]})
    server.client.post("/models/add/infer", json={"inputs": {"a": [[1] * 4] * 2, "b": [[1] * 4] * 3}})
    server.client.get("/%0a%22%1b[31m", headers={"x-request-id": "odd"})
    server.wait_for_log("request", request_id="odd")
    assert [line for line in server.lines if not line.startswith("{")] == []
    assert all("event" in json.loads(line) for line in server.lines)


@pytest.mark.extended
def test_stopped_log_reader_blocks_no_request(tmp_path: Path) -> None:
    """The log is read up to the line that names the port."""
    config = tmp_path / "config.toml"
    config.write_text(DIGITS, encoding="utf-8")
    environ = {**os.environ, GRPC_PORT: "0"}
    process, stderr = fork_server(["--config", str(config), "--port", "0"], environ, ROOT, False, False)
    try:
        port = next(event["port"] for event in map(json.loads, stderr) if event["event"] == "listening")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S, trust_env=False) as client:
            lost = 0
            while not lost:
                for _ in range(100):
                    assert client.get("/" + "a" * 1000).status_code == 404
                (line,) = [
                    line
                    for line in client.get("/metrics").text.splitlines()
                    if line.startswith("roundhouse_log_lines_dropped_total")
                ]
                lost = int(float(line.split()[1]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        stderr.close()


def test_log_line_holds_beginning_of_path(server: RunningServer) -> None:
    for number, path in enumerate(("/" + "a" * 60_000, "/" + "é" * 9000, "/" + "%00" * 15_000, "/" + "b" * 1000)):
        server.client.get(path, headers={"x-request-id": f"long-{number}"})
        shown = server.wait_for_log("request", request_id=f"long-{number}")["path"]
        assert len(shown.removesuffix("…").encode()) in range(1000, 1025)
        assert shown.endswith("…") == (number < 3)


@pytest.mark.extended
def test_terminal_gets_readable_log_and_curl_lines(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(DIGITS, encoding="utf-8")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--config", str(config), "--port", "0"], cwd=ROOT, stderr=theirs
    )
    os.close(theirs)
    written = b""

    def is_up() -> bool:
        nonlocal written
        written += os.read(ours, 65536)
        return b"in another shell:" in written and b"-d '" in written.partition(b"in another shell:")[2]

    try:
        wait_until(is_up)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"{" not in written.splitlines()[0]
    assert b"\x1b[" in written
    curl = [line for line in written.splitlines() if line.startswith(b"curl -s http://127.0.0.1")]
    assert len(curl) == 2
