"""Models with a response cache: a hit computes nothing, and each request gets its own response."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.gates import RunGate
from tests.e2e.load import QUESTION, ROW, Callers, batches, callers, wait_for_inflight
from tests.e2e.server import MODELS, RunningServer, assert_refused, serving, wait_until
from tests.support.models import onnx_costly_graphs, onnx_graphs

IMAGE: dict[str, Any] = {"input_data": [[1] * 64]}
TEXTS: dict[str, Any] = {"text": ["the engine waits", "in its shed"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cached")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    """Start digits, minilm-onnx and two gated graphs, all with a cache; and digits without one."""
    config = DIGITS + "cache = true\n"
    for name in ("minilm-onnx", "plain"):
        path = MODELS / ("digits" if name == "plain" else name)
        config += f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\ncache = {str(name != "plain").lower()}\n'
    config += onnx_entries(folder, {"slow": onnx_costly_graphs.slow(1, rows=1)}) + "cache = true\n"
    config += onnx_entries(folder, {"full": onnx_costly_graphs.slow(1, rows=1)}) + "cache = true\n"
    config += "max_concurrent_requests = 1\n"
    with serving(folder, config, gated=True) as running:
        yield running.wait_ready()


@pytest.fixture
def gate(folder: Path) -> RunGate:
    return RunGate(folder / "slow")


def timings(answer: httpx.Response) -> dict[str, float]:
    """Return the milliseconds in Server-Timing."""
    parts = (part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    return {name: float(value) for name, value in parts}


def counts(server: RunningServer, model: str) -> tuple[float, float]:
    """Return cache hits and misses."""
    hits, misses = (server.sample(f"roundhouse_cache_{what}_total", model=model) for what in ("hits", "misses"))
    return hits, misses


def without_latency(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return {name: value for name, value in answer.json().items() if name != "latency_ms"}


@pytest.mark.parametrize(("model", "question"), [("digits", IMAGE), ("minilm-onnx", TEXTS)])
def test_hit_computes_nothing(model: str, question: dict[str, Any], server: RunningServer) -> None:
    before, ran = counts(server, model), batches(server, model)
    held_bytes = server.sample("roundhouse_cache_bytes")
    first = server.client.post(f"/models/{model}/infer", json=question)
    assert timings(first)["compute"] > 0
    kept_bytes = server.sample("roundhouse_cache_bytes")
    assert held_bytes + 512 < kept_bytes < held_bytes + 10_000
    rows = batches(server, model)[1] - ran[1]
    # Another form, priority and deadline: the same request to the cache.
    named = {"model_name": model, "priority": 2, "timeout_ms": 60_000, **question}
    for body in (question, named):
        again = server.client.post(f"/models/{model}/infer", json=body)
        assert (timings(again)["queue"], timings(again)["compute"]) == (0, 0)
        assert without_latency(again) == without_latency(first)
    assert (counts(server, model)[0] - before[0], counts(server, model)[1] - before[1]) == (2, 1)
    assert batches(server, model)[1] - ran[1] == rows
    assert server.sample("roundhouse_cache_bytes") == kept_bytes


def test_hit_answered_in_form_of_request(server: RunningServer) -> None:
    flat = server.infer("digits", input_data=[2] * 64)
    nested = server.infer("digits", input_data=[[2] * 64])
    named = server.infer("digits", inputs={"image": [[2] * 64]}, outputs=["output_label"])
    assert flat["output_shape"] == nested["output_shape"] == [1]
    assert flat["output_data"] == nested["output_data"] == named["outputs"]["output_label"]["data"]
    everything = server.infer("digits", inputs={"image": [[2] * 64]})["outputs"]
    assert everything.keys() == {"output_label", "output_probability"}


def test_model_without_cache_computes_each_time(server: RunningServer) -> None:
    for _ in range(3):
        assert timings(server.client.post("/models/plain/infer", json=IMAGE))["compute"] > 0
    assert counts(server, "plain") == (0, 0)
    assert batches(server, "plain")[1] == 3


def test_refused_request_not_cached(server: RunningServer) -> None:
    for _ in range(2):
        assert_refused(server.client.post("/models/digits/infer", json={"input_data": [1]}), 400, "invalid_input")
        assert_refused(
            server.client.post("/models/minilm-onnx/infer", json={"text": "w " * 9999, "truncate": False}),
            400, "invalid_input",
        )  # fmt: skip


def slowly(many: Callers, x: float, **options: object) -> "Future[httpx.Response]":
    """Send a request to the gated model; a new x is a cache miss."""
    return many.ask("slow", input_data=[x, 2, 3, 4], **options)


class TestBusyModel:
    def test_hit_answered_beside_running_batch(self, server: RunningServer, gate: RunGate) -> None:
        cached = server.infer("slow", **QUESTION)
        with callers(server, 4) as many, gate.closed():
            running = slowly(many, 100)
            wait_for_inflight(server, 1)
            for _ in range(3):
                answer = server.client.post("/models/slow/infer", json=QUESTION)
                assert answer.json()["output_data"] == cached["output_data"] == ROW
                assert (timings(answer)["queue"], timings(answer)["compute"]) == (0, 0)
            assert not running.done()
            assert server.sample("roundhouse_queue_depth", model="slow") == 0
            gate.open()
            assert running.result().json()["output_data"] == [100, 2, 3, 4]

    def test_hit_answered_by_full_model(self, server: RunningServer, folder: Path) -> None:
        gate = RunGate(folder / "full")
        cached = server.infer("full", **QUESTION)
        with callers(server, 2) as many, gate.closed():
            running = many.ask("full", input_data=[100, 2, 3, 4])
            wait_for_inflight(server, 1, "full")
            assert server.infer("full", **QUESTION)["output_data"] == cached["output_data"]
            assert_refused(
                server.client.post("/models/full/infer", json={"input_data": [5, 2, 3, 4]}), 503, "overloaded"
            )
            gate.open()
            assert running.result().status_code == 200

    def test_equal_requests_share_one_run(self, server: RunningServer, gate: RunGate) -> None:
        before, ran = counts(server, "slow"), batches(server, "slow")
        with callers(server, 16) as many, gate.closed():
            asked = [slowly(many, 200) for _ in range(16)]
            wait_until(lambda: server.sample("roundhouse_inflight") == 16)
            assert server.inflight("slow") == 1, "only the first takes a place with the model"
            # It is handed to the worker; the others wait for it.
            wait_until(lambda: server.sample("roundhouse_queue_depth", model="slow") == 0)
            gate.open()
            assert [each.result().json()["output_data"] for each in asked] == [[200, 2, 3, 4]] * 16
        after = counts(server, "slow")
        assert (after[0] - before[0], after[1] - before[1]) == (15, 1)
        assert batches(server, "slow")[0] - ran[0] == 1

    def test_deadline_concerns_only_its_request(self, server: RunningServer, gate: RunGate) -> None:
        with callers(server, 3) as many, gate.closed():
            first = slowly(many, 300, timeout_ms=100)
            wait_until(lambda: first.done() or server.inflight("slow") == 1)
            others = [slowly(many, 300), slowly(many, 300, timeout_ms=150)]
            assert_refused(first.result(), 504, "deadline_exceeded")
            assert_refused(others[1].result(), 504, "deadline_exceeded")
            assert not others[0].done()
            gate.open()
            assert others[0].result().json()["output_data"] == [300, 2, 3, 4]
        assert server.inflight("slow") == 0


class TestDroppedEntries:
    @pytest.mark.extended
    def test_unload_clears_entries_of_model(self, start: Start) -> None:
        server = start(DIGITS + "cache = true\n").wait_ready()
        for times in (1, 2, 3):
            for _ in range(3):
                server.infer("digits", **IMAGE)
            assert counts(server, "digits") == (2 * times, times)
            assert server.client.post("/models/digits/unload").status_code == 200
            assert server.sample("roundhouse_cache_bytes") == 0
            assert_refused(server.client.post("/models/digits/infer", json=IMAGE), 503, "unloaded")
            assert server.client.post("/models/digits/load").status_code == 200

    @pytest.mark.extended
    def test_deleted_model_leaves_no_entries(self, start: Start, tmp_path: Path) -> None:
        entries = onnx_entries(tmp_path, {"a": onnx_graphs.scaled(2.0), "b": onnx_graphs.scaled(3.0)})
        server = start(f'[models]\nroots = ["{tmp_path}"]\n{entries}').wait_ready()
        for graph, factor in (("a", 2), ("b", 3), ("a", 2)):
            body = {"framework": "onnx", "name": "x", "path": str(tmp_path / graph), "cache": True}
            assert server.client.post("/models", json=body).status_code == 201
            for _ in range(2):
                assert server.infer("x", inputs={"x": [1, 2, 3, 4]})["outputs"]["y"]["data"] == [
                    factor * x for x in (1, 2, 3, 4)
                ]
            assert counts(server, "x") == (1, 1)
            assert server.client.delete("/models/x").status_code == 200
            assert counts(server, "x") == (0, 0)
            assert server.sample("roundhouse_cache_bytes") == 0

    @pytest.mark.extended
    def test_entries_dropped_by_size_and_age(self, start: Start) -> None:
        server = start(DIGITS + 'cache = true\n[cache]\nmax_bytes = "8KiB"\nttl_s = 1\n').wait_ready()
        for i in range(16):
            server.infer("digits", input_data=[i] * 64)
        assert 0 < server.sample("roundhouse_cache_bytes") <= 8192
        assert server.sample("roundhouse_cache_evictions_total") > 4
        # A slow machine may need more than a second between two requests.
        number = 16
        while counts(server, "digits")[0] == 0:
            number += 1
            for _ in range(2):
                server.infer("digits", input_data=[number] * 64)
        misses = counts(server, "digits")[1]

        def is_missed() -> bool:
            server.infer("digits", input_data=[number] * 64)
            return counts(server, "digits")[1] > misses

        wait_until(is_missed)
