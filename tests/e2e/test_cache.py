"""Models whose answers are kept: the same question costs nothing the second time, and nobody gets another's answer."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, RunningServer, assert_refused, serving, wait_until
from tests.e2e.test_scheduling import QUESTION, ROW, Callers, batches, callers
from tests.support.models import onnx_graphs

IMAGE: dict[str, Any] = {"input_data": [[1] * 64]}
TEXTS: dict[str, Any] = {"text": ["the engine waits", "in its shed"]}
SLOW_MS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """digits, minilm-onnx and a graph that takes long, all of them cached; and digits that is not."""
    folder = tmp_path_factory.mktemp("cached")
    config = DIGITS + "cache = true\n"
    for name in ("minilm-onnx", "plain"):
        path = MODELS / ("digits" if name == "plain" else name)
        config += f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\ncache = {str(name != "plain").lower()}\n'
    config += onnx_entries(folder, {"slow": onnx_graphs.slow(SLOW_MS, rows=1)}) + "cache = true\n"
    config += onnx_entries(folder, {"full": onnx_graphs.slow(SLOW_MS, rows=1)}) + "cache = true\n"
    config += "max_concurrent_requests = 1\n"
    with serving(folder, config) as running:
        yield running.wait_ready()


def timings(answer: httpx.Response) -> dict[str, float]:
    """Server-Timing's milliseconds."""
    parts = (part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    return {name: float(value) for name, value in parts}


def counts(server: RunningServer, model: str) -> tuple[float, float]:
    """Hits and misses."""
    hits, misses = (server.sample(f"roundhouse_cache_{what}_total", model=model) for what in ("hits", "misses"))
    return hits, misses


def without_latency(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return {name: value for name, value in answer.json().items() if name != "latency_ms"}


@pytest.mark.parametrize(("model", "question"), [("digits", IMAGE), ("minilm-onnx", TEXTS)])
def test_the_second_time_nothing_is_computed(model: str, question: dict[str, Any], server: RunningServer) -> None:
    before, ran = counts(server, model), batches(server, model)
    held_bytes = server.sample("roundhouse_cache_bytes")
    first = server.client.post(f"/models/{model}/infer", json=question)
    assert timings(first)["compute"] > 0
    kept_bytes = server.sample("roundhouse_cache_bytes")
    assert held_bytes + 512 < kept_bytes < held_bytes + 10_000
    rows = batches(server, model)[1] - ran[1]
    # In other words, at another priority, with a deadline: the same question.
    named = {"model_name": model, "priority": 2, "timeout_ms": 10_000, **question}
    for body in (question, named):
        again = server.client.post(f"/models/{model}/infer", json=body)
        assert (timings(again)["queue"], timings(again)["compute"]) == (0, 0)
        assert without_latency(again) == without_latency(first)
    assert (counts(server, model)[0] - before[0], counts(server, model)[1] - before[1]) == (2, 1)
    assert batches(server, model)[1] - ran[1] == rows
    assert server.sample("roundhouse_cache_bytes") == kept_bytes


def test_the_same_tensor_under_another_name_of_the_question_is_answered_in_its_form(server: RunningServer) -> None:
    flat = server.infer("digits", input_data=[2] * 64)
    nested = server.infer("digits", input_data=[[2] * 64])
    named = server.infer("digits", inputs={"image": [[2] * 64]}, outputs=["output_label"])
    assert flat["output_shape"] == nested["output_shape"] == [1]
    assert flat["output_data"] == nested["output_data"] == named["outputs"]["output_label"]["data"]
    everything = server.infer("digits", inputs={"image": [[2] * 64]})["outputs"]
    assert everything.keys() == {"output_label", "output_probability"}


def test_a_model_without_a_cache_computes_each_time(server: RunningServer) -> None:
    for _ in range(3):
        assert timings(server.client.post("/models/plain/infer", json=IMAGE))["compute"] > 0
    assert counts(server, "plain") == (0, 0)
    assert batches(server, "plain")[1] == 3


def test_what_is_refused_is_not_kept(server: RunningServer) -> None:
    for _ in range(2):
        assert_refused(server.client.post("/models/digits/infer", json={"input_data": [1]}), 400, "invalid_input")
        assert_refused(
            server.client.post("/models/minilm-onnx/infer", json={"text": "w " * 9999, "truncate": False}),
            400, "invalid_input",
        )  # fmt: skip


def slowly(many: Callers, x: float, **options: object) -> "Future[httpx.Response]":
    """A question to the slow model that nobody has asked before, if x is new."""
    return many.ask("slow", input_data=[x, 2, 3, 4], **options)


class TestWhileItIsBusy:
    def test_a_hit_is_answered_beside_a_run(self, server: RunningServer) -> None:
        kept = server.infer("slow", **QUESTION)
        with callers(server, 4) as many:
            running = slowly(many, 100)
            wait_until(lambda: server.inflight("slow") == 1)
            for _ in range(3):
                answer = server.client.post("/models/slow/infer", json=QUESTION)
                assert answer.json()["output_data"] == kept["output_data"] == ROW
                assert (timings(answer)["queue"], timings(answer)["compute"]) == (0, 0)
            assert not running.done()
            assert server.sample("roundhouse_queue_depth", model="slow") == 0
            assert running.result().json()["output_data"] == [100, 2, 3, 4]

    def test_what_is_known_is_answered_where_there_is_no_room(self, server: RunningServer) -> None:
        kept = server.infer("full", **QUESTION)
        with callers(server, 2) as many:
            running = many.ask("full", input_data=[100, 2, 3, 4])
            wait_until(lambda: server.inflight("full") == 1)
            assert server.infer("full", **QUESTION)["output_data"] == kept["output_data"]
            assert_refused(
                server.client.post("/models/full/infer", json={"input_data": [5, 2, 3, 4]}), 503, "overloaded"
            )
            assert running.result().status_code == 200

    def test_many_who_ask_the_same_wait_for_one_run(self, server: RunningServer) -> None:
        before, ran = counts(server, "slow"), batches(server, "slow")
        with callers(server, 16) as many:
            asked = [slowly(many, 200) for _ in range(16)]
            wait_until(lambda: server.sample("roundhouse_inflight") == 16)
            assert server.inflight("slow") == 1, "who waits for a neighbour's answer takes no place with the model"
            assert server.sample("roundhouse_queue_depth", model="slow") == 0, "they wait for their neighbour"
            assert [each.result().json()["output_data"] for each in asked] == [[200, 2, 3, 4]] * 16
        after = counts(server, "slow")
        assert (after[0] - before[0], after[1] - before[1]) == (15, 1)
        assert batches(server, "slow")[0] - ran[0] == 1

    def test_the_deadline_of_one_is_not_that_of_the_others(self, server: RunningServer) -> None:
        with callers(server, 3) as many:
            first = slowly(many, 300, timeout_ms=100)
            wait_until(lambda: server.inflight("slow") == 1)
            others = [slowly(many, 300), slowly(many, 300, timeout_ms=150)]
            assert_refused(first.result(), 504, "deadline_exceeded")
            assert_refused(others[1].result(), 504, "deadline_exceeded")
            assert not others[0].done()
            assert others[0].result().json()["output_data"] == [300, 2, 3, 4]
        assert server.inflight("slow") == 0


class TestWhatIsDropped:
    def test_a_model_that_is_loaded_again_is_asked_again(self, start: Start) -> None:
        server = start(DIGITS + "cache = true\n").wait_ready()
        for times in (1, 2, 3):
            for _ in range(3):
                server.infer("digits", **IMAGE)
            assert counts(server, "digits") == (2 * times, times)
            assert server.client.post("/models/digits/unload").status_code == 200
            assert server.sample("roundhouse_cache_bytes") == 0
            assert_refused(server.client.post("/models/digits/infer", json=IMAGE), 503, "unloaded")
            assert server.client.post("/models/digits/load").status_code == 200

    def test_a_model_that_is_deleted_leaves_nothing_to_another_of_its_name(self, start: Start, tmp_path: Path) -> None:
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

    def test_old_answers_go_for_want_of_room_and_with_age(self, start: Start) -> None:
        server = start(DIGITS + 'cache = true\n[cache]\nmax_bytes = "8KiB"\nttl_s = 0.5\n').wait_ready()
        for i in range(16):
            server.infer("digits", input_data=[i] * 64)
        assert 0 < server.sample("roundhouse_cache_bytes") <= 8192
        assert server.sample("roundhouse_cache_evictions_total") > 4
        server.infer("digits", input_data=[15] * 64)
        assert counts(server, "digits") == (1, 16)
        time.sleep(0.6)
        server.infer("digits", input_data=[15] * 64)
        assert counts(server, "digits") == (1, 17)
