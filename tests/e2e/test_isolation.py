"""Models with a process of their own: their keys in a registration."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer, assert_refused, wait_until
from tests.support.models import onnx_graphs


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    onnx_entries(tmp_path, {"good": onnx_graphs.add()})
    return tmp_path


@pytest.fixture
def server(start: Start, roots: Path) -> RunningServer:
    return start(f'[models]\nroots = ["{roots}"]\n' + DIGITS)


def body(roots: Path, **keys: Any) -> dict[str, Any]:
    return {"framework": "onnx", "name": "new", "path": str(roots / "good"), **keys}


@pytest.mark.extended
def test_registered_model_runs_in_process_until_deleted(server: RunningServer, roots: Path) -> None:
    assert server.sample("roundhouse_engine_processes") == 0
    keys = {"isolation": "process", "max_batch_seconds": 60, "max_process_memory": "8GiB"}
    answer = server.client.post("/models", json=body(roots, **keys))
    assert (answer.status_code, answer.json()["state"]) == (201, "ready"), answer.text
    assert server.sample("roundhouse_engine_processes") == 1
    assert server.sample("roundhouse_engine_restarts_total", model="new", reason="sigsegv") == 0
    answer = server.client.post("/models/new/infer", json={"inputs": {"a": [[1, 2, 3, 4]], "b": [[5, 6, 7, 8]]}})
    assert answer.status_code == 200, answer.text
    assert server.client.delete("/models/new").status_code == 200
    wait_until(lambda: server.sample("roundhouse_engine_processes") == 0)


def test_keys_of_process_need_isolation(server: RunningServer, roots: Path) -> None:
    answer = server.client.post("/models", json=body(roots, cpus="0"))
    assert_refused(answer, 400, "invalid_input", 'cpus: expected no value without isolation = "process", got "0"')


@pytest.mark.extended
def test_unusable_cpus_are_refused(server: RunningServer, roots: Path) -> None:
    answer = server.client.post("/models", json=body(roots, isolation="process", cpus="9000"))
    assert answer.status_code >= 400
    assert "cpus: expected CPUs that the server may use" in answer.json()["error"]["message"]
    assert server.sample("roundhouse_engine_processes") == 0
