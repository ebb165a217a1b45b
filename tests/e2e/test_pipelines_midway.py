"""Pipelines whose step is held: disconnects, deadlines, unloads and reloads meanwhile, and shared batches."""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.gates import RunGate
from tests.e2e.load import ROW, batches, batches_since, callers, slow_model, wait_for_inflight
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.models import onnx_graphs

PIPELINE = """
[[pipelines]]
name = "midway"
inputs = ["x"]
outputs = { y = "then" }
steps = [
    { name = "hold", model = "slow", inputs = { x = "x" } },
    { name = "then", model = "after", inputs = { x = "hold" } },
]
[[pipelines]]
name = "twice"
inputs = ["x"]
outputs = { y = "both" }
steps = [
    { name = "left", model = "after", inputs = { x = "x" } },
    { name = "right", model = "after", inputs = { x = "x" } },
    { name = "again", model = "after", inputs = { x = "left" } },
    { name = "both", builtin = "concat", inputs = { a = "again", b = "right" } },
]
[[pipelines]]
name = "picked"
inputs = ["indices"]
outputs = { y = "pick" }
steps = [{ name = "pick", model = "gather", inputs = { indices = "indices" } }]
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunGate]]:
    folder = tmp_path_factory.mktemp("midway")
    entry, gate = slow_model(folder, rows="n")
    others = onnx_entries(folder, {"after": onnx_graphs.identity(shape=("n", 4)), "gather": onnx_graphs.gather()})
    with serving(folder, entry + others + PIPELINE, gated=True) as server:
        server.wait_ready()
        for _ in range(2):
            # The cost model learns from large batches that sharing pays.
            server.infer("slow", input_data=[ROW] * 32)
        yield server, gate


class TestBatches:
    # The first test: held runs spoil the cost model.
    def test_direct_and_pipeline_requests_share_a_batch(self, held: tuple[RunningServer, RunGate]) -> None:
        server, gate = held
        with callers(server, 3) as many, gate.closed():
            asked = [many.ask("slow", input_data=ROW)]
            wait_for_inflight(server, 1)
            before = batches(server, "slow")
            asked.append(many.ask("slow", input_data=[5, 6, 7, 8]))
            asked.append(many.ask("midway", input_data=[[9, 9, 9, 9], [0, 0, 0, 0]]))
            wait_for_inflight(server, 3)
            assert server.sample("roundhouse_queue_depth", model="slow") == 2
            gate.open()
            data = [each.result().json()["output_data"] for each in asked]
        assert data == [ROW, [5, 6, 7, 8], [[9, 9, 9, 9], [0, 0, 0, 0]]]
        assert batches_since(before, server, "slow") == (2, 4)


class TestHeldStep:
    def test_disconnect_cancels_later_steps(self, held: tuple[RunningServer, RunGate]) -> None:
        server, gate = held
        before = batches(server, "after")
        body = json.dumps({"input_data": ROW}).encode()
        head = b"POST /models/midway/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with gate.closed():
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as closing:
                closing.sendall(head + body)
                wait_for_inflight(server, 1)
            wait_until(lambda: server.sample("roundhouse_requests_total", model="midway", code="499") == 1)
            wait_for_inflight(server, 0)
            wait_for_inflight(server, 0, "midway")
        server.infer("slow", input_data=ROW)
        assert batches_since(before, server, "after") == (0, 0)

    def test_deadline_cancels_later_steps(self, held: tuple[RunningServer, RunGate]) -> None:
        server, gate = held
        before = batches(server, "after")
        with gate.closed():
            answer = server.client.post("/models/midway/infer", json={"input_data": ROW, "timeout_ms": 50})
            assert_refused(answer, 504, "deadline_exceeded", 'model "midway" did not answer within timeout_ms')
        server.infer("slow", input_data=ROW)
        assert batches_since(before, server, "after") == (0, 0)

    def test_unload_waits_for_running_step(self, held: tuple[RunningServer, RunGate]) -> None:
        server, gate = held
        with callers(server, 1) as one, callers(server, 1) as other, gate.closed():
            asked = one.ask("midway", input_data=ROW)
            wait_for_inflight(server, 1)
            unloaded = other._pool.submit(other._client.post, "/models/slow/unload")
            wait_until(lambda: server.client.get("/models/slow").json()["state"] == "draining")
            gate.open()
            assert asked.result().json()["output_data"] == ROW
            assert unloaded.result().status_code == 200
        answer = server.client.post("/models/midway/infer", json={"input_data": ROW})
        assert_refused(answer, 503, "unloaded", 'step "hold": its model was unloaded')
        server.client.post("/models/slow/load").raise_for_status()
        assert server.infer("midway", input_data=ROW)["output_data"] == ROW

    def test_later_model_may_be_reloaded_meanwhile(self, held: tuple[RunningServer, RunGate]) -> None:
        server, gate = held
        for loads_again in (True, False):
            with callers(server, 1) as one, gate.closed():
                asked = one.ask("midway", input_data=ROW)
                wait_for_inflight(server, 1)
                server.client.post("/models/after/unload").raise_for_status()
                if loads_again:
                    server.client.post("/models/after/load").raise_for_status()
                gate.open()
                if loads_again:
                    assert asked.result().json()["output_data"] == ROW
                else:
                    assert_refused(asked.result(), 503, "unloaded", 'step "then": its model was unloaded')
        server.client.post("/models/after/load").raise_for_status()


class TestGraphs:
    def test_one_model_may_run_in_several_steps(self, held: tuple[RunningServer, RunGate]) -> None:
        server, _ = held
        for _ in range(20):  # the first ones on a thread, later ones on the event loop
            assert server.infer("twice", input_data=ROW)["output_data"] == ROW + ROW

    def test_failed_step_is_named(self, held: tuple[RunningServer, RunGate]) -> None:
        server, _ = held
        for _ in range(3):
            answer = server.client.post("/models/picked/infer", json={"input_data": [7]})
            assert_refused(answer, 400, "invalid_input", "the graph refuses these values", '(step "pick")')
        assert server.infer("picked", input_data=[1])["output_data"] == [11.0]
