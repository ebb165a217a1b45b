"""Bodies of binary tensors that are received into the memory of an engine process."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.engines import ISOLATED, engine, restarts, state, wait_at_rest
from tests.e2e.server import WAIT_S, RunningServer, serving, wait_until
from tests.support.models import onnx_graphs

COUNT = 150_528
MODELS = ("apart", "killed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("bodies")
    # One row: a request of many short rows would be run in thousands of batches.
    graph = onnx_graphs.identity(shape=("n", COUNT))
    with serving(folder, onnx_entries(folder, dict.fromkeys(MODELS, graph)) + ISOLATED) as running:
        yield running.wait_ready()
        wait_at_rest(running, len(MODELS))
        running.check_log()


def request_of(model: str, values: np.ndarray, tensors: int = 1) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers; the answer is binary too."""
    size = {"binary_data_size": values.nbytes}
    entry = {"name": "x", "shape": [1, values.size], "datatype": "FP32", "parameters": size}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": [entry] * tensors, "outputs": outputs}).encode()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(header)),
        "content-length": str(len(header) + tensors * values.nbytes),
    }
    return f"/v2/models/{model}/infer", header + tensors * values.tobytes(), headers


class Exchange:
    """One request whose body is sent in two parts."""

    def __init__(self, server: RunningServer, model: str, values: np.ndarray, tensors: int = 1) -> None:
        path, body, headers = request_of(model, values, tensors)
        self.connection = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        self.connection.putrequest("POST", path)
        for name, value in headers.items():
            self.connection.putheader(name, value)
        self.connection.endheaders()
        self.connection.send(body[: len(body) // 2])
        self._rest = body[len(body) // 2 :]

    def finish(self) -> tuple[int, bytes]:
        self.connection.send(self._rest)
        answer = self.connection.getresponse()
        body = answer.read()
        self.connection.close()
        return answer.status, body


def values_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(COUNT, dtype=np.float32)


def assert_right(answer: tuple[int, bytes], values: np.ndarray) -> None:
    status, body = answer
    assert status == 200, body[:300]
    assert body.endswith(values.tobytes())


def test_tensors_of_many_callers_are_right(server: RunningServer) -> None:
    def ask(seed: int) -> None:
        values = values_of(seed)
        for _ in range(5):
            assert_right(Exchange(server, "apart", values).finish(), values)

    with ThreadPoolExecutor(8) as callers:
        list(callers.map(ask, range(8)))
    wait_at_rest(server, len(MODELS))


def test_refused_body_leaves_nothing(server: RunningServer) -> None:
    status, body = Exchange(server, "apart", values_of(1), tensors=2).finish()
    assert status == 400, body
    wait_at_rest(server, len(MODELS))


def test_lost_client_leaves_nothing(server: RunningServer) -> None:
    exchange = Exchange(server, "apart", values_of(2))
    wait_until(lambda: server.sample("roundhouse_engine_shared_memory_bytes", kind="leased") > 0)
    exchange.connection.close()
    wait_at_rest(server, len(MODELS))


@pytest.mark.extended
def test_body_outlives_process(server: RunningServer) -> None:
    """The process ends while the body arrives: its tensors are copied into the memory of the next process."""
    values = values_of(3)
    exchange = Exchange(server, "killed", values)
    wait_until(lambda: server.sample("roundhouse_engine_shared_memory_bytes", kind="leased") > 0)
    os.kill(engine(server, "killed").pid, signal.SIGKILL)
    wait_until(lambda: restarts(server, "killed") == 1)
    assert_right(exchange.finish(), values)
    wait_until(lambda: state(server, "killed") == "ready")
    wait_at_rest(server, len(MODELS))
