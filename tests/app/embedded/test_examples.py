"""Curl lines: valid shell and JSON, printed after the server is ready."""

import json
import os
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from app.embedded import examples


def test_curl_lines_are_valid_shell_and_json() -> None:
    health, image, *requests, call = [shlex.split(line) for line in examples.curl_lines("127.0.0.1", 8080)]
    assert health == ["curl", "-s", "http://127.0.0.1:8080/health"]
    assert image[-2:] == ["--data-binary", "@models/shapes/example.jpg"]
    bodies = [json.loads(line[line.index("-d") + 1]) for line in requests]
    names = ["minilm", "minilm-onnx", "digits", "digits", "tiny-llama", "tiny-llama"]
    assert [body["model_name"] for body in bodies] == names
    assert len(bodies[2]["input_data"]) == 64
    assert all(line[2] == "http://127.0.0.1:8080/infer" for line in requests)
    assert call[2] == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(call[call.index("-d") + 1])["tools"][0]["function"]["name"] == "weather"


def test_main_waits_until_server_is_ready(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([503, 503, 200])

    class Starting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health/ready"
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    monkeypatch.setattr(examples, "POLL_S", 0.01)
    with HTTPServer(("127.0.0.1", 0), Starting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_port)
        assert examples.main(["--port", port, "--when-ready", str(os.getpid())]) == 0
        server.shutdown()
    assert next(answers, None) is None
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "ready; in another shell:"
    assert said[3] == f"curl -s http://127.0.0.1:{port}/health"


def test_main_stops_when_server_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    server = subprocess.Popen([sys.executable, "-c", ""])
    server.wait()
    assert examples.main(["--port", "1", "--when-ready", str(server.pid)]) == 1
    assert capsys.readouterr().out == ""
