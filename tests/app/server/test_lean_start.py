"""A server with one ONNX model imports no part that its first answer does not need, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.server import ROOT, free_port

SERVE = """
import http.client, json, os, signal, sys, threading, time
from app.cli.commands import main

port, model = sys.argv[1:]
facts = {}

def ask():
    try:
        while not answered():
            time.sleep(0.01)
        facts["modules"] = sorted(sys.modules)
        facts["health"] = response("GET", "/health")
        facts["has_fastapi"] = "fastapi" in sys.modules
        facts["has_openai"] = "app.protocols.openai.chat" in sys.modules
        facts["completion"] = response("POST", "/v1/completions", json.dumps({"model": "none", "prompt": "a"}))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

def answered():
    try:
        return response("POST", "/infer", json.dumps({"model_name": "digits", "input_data": [0.5] * 64})) == 200
    except ConnectionError:
        return False

def response(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
    connection.request(method, path, body, {"content-type": "application/json"})
    return connection.getresponse().status

threading.Thread(target=ask, daemon=True).start()
main(["serve", model, "--host", "127.0.0.1", "--port", port])
print(json.dumps(facts))
"""

NOT_NEEDED = (
    "app.admin.health",
    "app.admin.models.api",
    "app.admin.pages",
    "app.http.routes",
    "app.protocols.open_inference",
    "app.protocols.openai",
    "app.protocols.shared.body_codec",
    "app.server.administration",
    "app.server.supervisor",
    "app.server.worker",
    "extensions.clients.ollama",
    "extensions.clients.tei",
    "extensions.load_test.options",
    "extensions.offline.options",
    "extensions.pipelines.checker",
    "extensions.search.api",
    "fastapi",
    "filelock",
    "frameworks.onnx.quantization.copy",
    "google.protobuf",
    "onnx",
    "rich",
    "starlette.applications",
    "starlette.responses",
    "tokenizers",
    "torch",
    "transformers",
    "watchfiles",
)


def test_first_answer_needs_few_modules(tmp_path: Path) -> None:
    model = ROOT / "app" / "embedded" / "digits"
    words = [sys.executable, "-c", SERVE, str(free_port()), str(model)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    imported = set(facts["modules"])
    assert "onnxruntime" in imported
    assert not imported.intersection(NOT_NEEDED)
    assert facts["health"] == 200
    assert facts["has_fastapi"]
    assert not facts["has_openai"], "neither does a request of the administration"
    assert facts["completion"] == 404
