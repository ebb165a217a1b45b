"""Many callers at once: each gets its own answer, in the order of priority, by its deadline, or an honest refusal."""

import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, RunningServer, assert_refused, wait_until
from tests.e2e.test_text import EMBEDDERS, WORDS
from tests.support.models import onnx_graphs

CALLERS = 64
ROW = [1.0, 2.0, 3.0, 4.0]
QUESTION = {"input_data": ROW}


@contextmanager
def callers(server: RunningServer, count: int) -> Iterator["Callers"]:
    """So many who can ask at the same time, each over a connection of its own."""
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    with httpx.Client(base_url=server.url, timeout=60, limits=limits) as client, ThreadPoolExecutor(count) as pool:
        yield Callers(pool, client)


class Callers:
    def __init__(self, pool: ThreadPoolExecutor, client: httpx.Client) -> None:
        self._pool = pool
        self._client = client

    def ask(self, model: str, **body: object) -> "Future[httpx.Response]":
        return self._pool.submit(self._client.post, f"/models/{model}/infer", json=body)


def batches(server: RunningServer, model: str) -> tuple[float, float]:
    """How many batches of the model have run, and how many rows in all."""
    count, rows = (server.sample(f"roundhouse_batch_size_{part}", model=model) for part in ("count", "sum"))
    return count, rows


def teach(server: RunningServer, model: str, row: list[float]) -> None:
    """Shows a model's worker that many rows cost no more than one: its first batches would else be small."""
    for _ in range(2):
        server.infer(model, input_data=[row] * 32)


class TestFields:
    @pytest.mark.parametrize("question", [{"input_data": [0] * 64}, {"inputs": {"image": [[0] * 64]}}])
    @pytest.mark.parametrize(
        ("field", "value", "words"),
        [
            ("priority", 10, "is 10; wants a whole number from 1 (first) to 9"),
            ("priority", 2**31 - 1, "is 2147483647; wants a whole number from 1 (first) to 9"),
            ("priority", 0, "expected an integer of 1 or more, got 0"),
            ("priority", -1, "expected an integer of 1 or more, got -1"),
            ("priority", 1.5, "expected an integer of 1 or more, got 1.5"),
            ("priority", "1", "expected an integer of 1 or more, got a string"),
            ("priority", None, "expected an integer of 1 or more, got null"),
            ("priority", True, "expected an integer of 1 or more, got a boolean"),
            ("timeout_ms", 0, "expected an integer of 1 or more, got 0"),
            ("timeout_ms", -5, "expected an integer of 1 or more, got -5"),
            ("timeout_ms", 2**31, "expected an integer of 1 or more, got 2147483648"),
            ("timeout_ms", 0.5, "expected an integer of 1 or more, got 0.5"),
            ("timeout_ms", "1s", "expected an integer of 1 or more, got a string"),
            ("timeout_ms", [1], "expected an integer of 1 or more, got an array"),
        ],
    )
    def test_a_value_out_of_range_is_refused_by_name(
        self, question: dict[str, Any], field: str, value: object, words: str, server: RunningServer
    ) -> None:
        answer = server.client.post("/models/digits/infer", json=question | {field: value})
        assert_refused(answer, 400, "invalid_input", f"{field}: {words}")

    @pytest.mark.parametrize("model", ["digits", "minilm-onnx"])
    def test_they_go_with_every_question(self, model: str, server: RunningServer) -> None:
        questions: list[dict[str, Any]] = (
            [{"text": "a"}] if model != "digits" else [{"input_data": [0] * 64}, {"inputs": {"image": [[0] * 64]}}]
        )
        for question in questions:
            plain = server.infer(model, **question)
            for priority in (1, 5, 9):
                answer = server.infer(model, **question, priority=priority, timeout_ms=60_000)
                assert answer.keys() == plain.keys()


class TestOrder:
    def test_the_urgent_overtake_those_who_wait(self, start: Start, tmp_path: Path) -> None:
        config = onnx_entries(tmp_path, {"slow": onnx_graphs.slow(400, rows=1)}) + "[scheduling]\nageing_ms = 1e6\n"
        server = start(config).wait_ready()
        done: list[int] = []

        def note(i: int, answer: "Future[httpx.Response]") -> None:
            done.append(i if answer.result().status_code == 200 else -1)

        def has_come(count: int) -> bool:
            return server.inflight("slow") == count

        with callers(server, 5) as many:
            for i, priority in enumerate((5, 5, 9, 5, 1)):
                many.ask("slow", **QUESTION, priority=priority).add_done_callback(partial(note, i))
                wait_until(partial(has_come, i + 1))
        assert done == [0, 1, 4, 3, 2], "the first runs, the second is with the device's thread already"


class TestDeadlines:
    def test_what_is_late_is_told_at_its_deadline_and_never_executed(self, start: Start, tmp_path: Path) -> None:
        server = start(onnx_entries(tmp_path, {"slow": onnx_graphs.slow(600, rows=1)})).wait_ready()
        with callers(server, 6) as many:
            first = many.ask("slow", **QUESTION)
            wait_until(lambda: server.inflight("slow") == 1)
            started_s = time.monotonic()
            late = [many.ask("slow", **QUESTION, timeout_ms=150) for _ in range(3)]
            for answer in late:
                message = assert_refused(answer.result(), 504, "deadline_exceeded", 'model "slow"', "timeout_ms")
                assert "allow more time" in message
            assert time.monotonic() - started_s >= 0.15
            assert not first.done(), "they heard of it at their deadline"
            assert (server.inflight("slow"), server.sample("roundhouse_queue_depth", model="slow")) == (1, 0)
            assert first.result().status_code == 200
            assert server.infer("slow", **QUESTION, timeout_ms=60_000)["output_data"] == ROW
        assert batches(server, "slow") == (2, 2)
        assert server.sample("roundhouse_requests_total", model="slow", code="504") == 3
        assert server.sample("roundhouse_rejected_total") == 0, "nobody was refused for want of room"

    def test_one_that_runs_already_is_told_too(self, start: Start, tmp_path: Path) -> None:
        """The default deadline holds where the request names none."""
        entries = onnx_entries(tmp_path, {"slow": onnx_graphs.slow(1000, rows=1)})
        server = start(entries + "[scheduling]\ndefault_timeout_ms = 100\n").wait_ready()
        for body in ({}, {"timeout_ms": 50}):
            started_s = time.monotonic()
            assert_refused(server.client.post("/models/slow/infer", json=QUESTION | body), 504, "deadline_exceeded")
            assert time.monotonic() - started_s < 0.7
        assert server.infer("slow", **QUESTION, timeout_ms=60_000)["output_data"] == ROW

    def test_texts_have_deadlines_too(self, server: RunningServer) -> None:
        texts = [" ".join(random.Random(i).choices(WORDS, k=200)) for i in range(400)]
        started_s = time.monotonic()
        answer = server.client.post("/models/minilm-onnx/infer", json={"text": texts, "timeout_ms": 100})
        assert_refused(answer, 504, "deadline_exceeded")
        assert time.monotonic() - started_s < 3, "all of the texts take far longer"
        assert len(server.infer("minilm-onnx", text="next")["embeddings"]) == 1


class TestOverload:
    @pytest.mark.parametrize("whose", ["the server", 'model "slow"'])
    def test_past_the_queue_s_bound_are_only_honest_refusals(self, whose: str, start: Start, tmp_path: Path) -> None:
        config = onnx_entries(tmp_path, {"slow": onnx_graphs.slow(100, rows=1)})
        config += "max_queue_size = 3\n" if whose != "the server" else "[scheduling]\nmax_queue_size = 3\n"
        server = start(config).wait_ready()
        refused = 0
        with callers(server, 24) as many:
            for _ in range(2):
                answers = [each.result() for each in [many.ask("slow", **QUESTION) for _ in range(24)]]
                for answer in answers:
                    if answer.status_code == 200:
                        assert answer.json()["output_data"] == ROW
                        continue
                    assert_refused(answer, 503, "overloaded", whose, "3 requests are waiting, its max_queue_size")
                    assert 1 <= int(answer.headers["retry-after"]) <= 5
                    refused += 1
                # One runs, one is next, three wait.
                assert sum(answer.status_code == 200 for answer in answers) >= 5
        assert refused > 20
        assert server.sample("roundhouse_rejected_total", reason="overloaded") == refused
        assert server.sample("roundhouse_requests_total", code="503") == refused
        assert server.infer("slow", **QUESTION)["output_data"] == ROW
        assert (server.inflight("slow"), server.sample("roundhouse_queue_depth")) == (0, 0)

    def test_retry_after_follows_how_fast_the_queue_drains(self, start: Start, tmp_path: Path) -> None:
        entry = onnx_entries(tmp_path, {"slow": onnx_graphs.slow(300, rows=1)}) + "max_queue_size = 8\n"
        server = start(entry).wait_ready()
        with callers(server, 16) as many:
            for _ in range(2):
                assert many.ask("slow", **QUESTION).result().status_code == 200
            asked = [many.ask("slow", **QUESTION) for _ in range(10)]
            wait_until(lambda: server.sample("roundhouse_queue_depth", model="slow") == 8)
            answer = server.client.post("/models/slow/infer", json=QUESTION)
            assert_refused(answer, 503, "overloaded", "8 requests are waiting")
            # Eight at about 0.3 s each.
            assert 2 <= int(answer.headers["retry-after"]) <= 6
            assert all(each.result().status_code == 200 for each in asked)

    def test_one_request_at_a_time_of_the_whole_server(self, start: Start, tmp_path: Path) -> None:
        entries = DIGITS + onnx_entries(tmp_path, {"slow": onnx_graphs.slow(500, rows=1)})
        server = start(entries + "[scheduling]\nmax_concurrent_requests = 1\n").wait_ready()
        with callers(server, 2) as many:
            first = many.ask("slow", **QUESTION)
            wait_until(lambda: server.inflight("slow") == 1)
            started_s = time.monotonic()
            for model in ("slow", "digits", "no-such-model"):
                answer = server.client.post(f"/models/{model}/infer", json={"input_data": [0] * 64})
                assert_refused(
                    answer, 503, "overloaded", "the server: 1 requests are in flight, its max_concurrent_requests"
                )
                assert int(answer.headers["retry-after"]) >= 1
            assert time.monotonic() - started_s < 0.4
            assert server.client.get("/models").status_code == 200, "only inference is bounded"
            assert first.result().status_code == 200
        assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]

    def test_one_request_at_a_time_of_a_model(self, start: Start, tmp_path: Path) -> None:
        entry = onnx_entries(tmp_path, {"slow": onnx_graphs.slow(500, rows=1)}) + "max_concurrent_requests = 1\n"
        server = start(entry + DIGITS).wait_ready()
        with callers(server, 2) as many:
            first = many.ask("slow", **QUESTION)
            wait_until(lambda: server.inflight("slow") == 1)
            answer = server.client.post("/models/slow/infer", json=QUESTION)
            assert_refused(answer, 503, "overloaded", 'model "slow": 1 requests are in flight')
            # Named in the body, it is refused as well, before its tensors are read.
            answer = server.client.post("/infer", json={"model_name": "slow", "input_data": [[[]], 1]})
            assert_refused(answer, 503, "overloaded", 'model "slow": 1 requests are in flight')
            assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]
            assert first.result().status_code == 200
        assert server.infer("slow", **QUESTION)["output_data"] == ROW


class TestNeighbours:
    def test_a_caller_that_leaves_while_it_waits_harms_nobody(self, start: Start, tmp_path: Path) -> None:
        server = start(onnx_entries(tmp_path, {"slow": onnx_graphs.slow(400)})).wait_ready()
        teach(server, "slow", ROW)
        before = batches(server, "slow")
        body = json.dumps(QUESTION).encode()
        head = b"POST /models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with callers(server, 3) as many:
            asked = [many.ask("slow", **QUESTION)]
            wait_until(lambda: server.inflight("slow") == 1)
            asked.append(many.ask("slow", input_data=[5, 6, 7, 8]))
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as leaving:
                leaving.sendall(head + body)
                asked.append(many.ask("slow", input_data=[[9, 9, 9, 9], [0, 0, 0, 0]]))
                wait_until(lambda: server.inflight("slow") == 4)
                assert server.sample("roundhouse_queue_depth", model="slow") == 3
            wait_until(lambda: server.sample("roundhouse_requests_total", model="slow", code="499") == 1)
            assert not asked[0].done(), "it left while the first was running"
            data = [each.result().json()["output_data"] for each in asked]
            assert data == [ROW, [5, 6, 7, 8], [[9, 9, 9, 9], [0, 0, 0, 0]]]
        count, rows = (after - was for after, was in zip(batches(server, "slow"), before, strict=True))
        assert (count, rows) == (2, 4), "the two who stayed shared a batch, and he who left was not in it"
        assert server.inflight("slow") == 0

    @pytest.mark.parametrize("model", EMBEDDERS)
    def test_texts_asked_together_are_answered_as_if_alone(self, model: str, server: RunningServer) -> None:
        chance = random.Random(8)
        texts = [" ".join(chance.choices(WORDS, k=1 + i * i // 40)) for i in range(CALLERS)]
        chance.shuffle(texts)
        alone = [server.infer(model, text=text)["embeddings"] for text in texts]
        before = batches(server, model)
        with callers(server, CALLERS) as many:
            answers = [each.result() for each in [many.ask(model, text=text) for text in texts]]
        for answer, wanted in zip(answers, alone, strict=True):
            assert answer.status_code == 200, answer.text
            assert np.abs(np.array(answer.json()["embeddings"]) - np.array(wanted)).max() < 1e-5
        count, rows = (after - was for after, was in zip(batches(server, model), before, strict=True))
        assert rows == CALLERS
        assert count < CALLERS, "some of them shared a batch"

    def test_tensors_asked_together_are_answered_as_if_alone(self, server: RunningServer) -> None:
        random = np.random.default_rng(3)
        images = [random.integers(0, 17, (1 + i % 3, 64)).tolist() for i in range(CALLERS)]
        questions = [{"inputs": {"image": image}} for image in images]
        alone = [server.infer("digits", **question)["outputs"] for question in questions]
        rows_asked = sum(map(len, images))
        before = batches(server, "digits")
        rounds = 0
        with callers(server, CALLERS) as many:
            # How many are read in one round of the server's loop is for the machine to say.
            while rounds < 20:
                rounds += 1
                answers = [each.result() for each in [many.ask("digits", **question) for question in questions]]
                for answer, wanted in zip(answers, alone, strict=True):
                    assert answer.status_code == 200, answer.text
                    check_same(answer.json()["outputs"], wanted)
                count, rows = (after - was for after, was in zip(batches(server, "digits"), before, strict=True))
                assert rows == rounds * rows_asked
                if count < rounds * CALLERS:
                    break
        assert count < rounds * CALLERS, "some of them shared a batch"

    def test_those_who_come_while_a_graph_runs_share_the_next_run(self, start: Start, tmp_path: Path) -> None:
        server = start(onnx_entries(tmp_path, {"slow": onnx_graphs.slow(250)})).wait_ready()
        teach(server, "slow", ROW)
        before = batches(server, "slow")
        with callers(server, CALLERS) as many:
            asked = [many.ask("slow", input_data=[i, i + 0.25, -i, 0.5]) for i in range(CALLERS)]
            for i, answer in enumerate(asked):
                assert answer.result().json()["output_data"] == [i, i + 0.25, -i, 0.5]
        count, rows = (after - was for after, was in zip(batches(server, "slow"), before, strict=True))
        assert rows == CALLERS
        # At most 32 rows in one; the first may have been alone, and some may have come late.
        assert 2 <= count <= 8
        assert server.sample("roundhouse_batch_size_bucket", model="slow", le="32") == count + before[0]

    def test_a_model_that_nobody_has_asked_yet_begins_with_small_batches(self, start: Start, tmp_path: Path) -> None:
        server = start(onnx_entries(tmp_path, {"slow": onnx_graphs.slow(100)})).wait_ready()
        with callers(server, 16) as many:
            answers = [each.result() for each in [many.ask("slow", **QUESTION) for _ in range(16)]]
        assert [answer.json()["output_data"] for answer in answers] == [ROW] * 16
        below = {rows: server.sample("roundhouse_batch_size_bucket", model="slow", le=rows) for rows in ("1", "2", "4")}
        assert below["1"] >= 2
        assert below["2"] - below["1"] >= 1, "they grow"
        assert batches(server, "slow")[0] < 16


def check_same(came: Any, wanted: Any) -> None:
    """Labels and shapes exactly, probabilities within 1e-5."""
    assert came["output_label"] == wanted["output_label"]
    one, other = came["output_probability"], wanted["output_probability"]
    assert one["shape"] == other["shape"]
    for probabilities, expected in zip(one["data"], other["data"], strict=True):
        assert probabilities == pytest.approx(expected, abs=1e-5)


class TestModels:
    def test_instances_run_side_by_side(self, start: Start, tmp_path: Path) -> None:
        config = onnx_entries(tmp_path, {"slow": onnx_graphs.slow(400, rows=1)}) + "instances = 2\n"
        minilm = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\ninstances = 2\n'
        server = start(config + minilm).wait_ready()
        for name in ("slow", "minilm"):
            assert server.wait_for_log("model ready", model=name)["instances"] == 2
        with callers(server, 16) as many:
            asked = [many.ask("slow", **QUESTION) for _ in range(2)]
            wait_until(lambda: server.inflight("slow") == 2)
            assert server.sample("roundhouse_queue_depth", model="slow") == 0, "nobody waits: each has its instance"
            assert [each.result().json()["output_data"] for each in asked] == [ROW, ROW]
            texts = [" ".join(WORDS[: 1 + i * 3]) for i in range(16)]
            alone = [server.infer("minilm", text=text)["embeddings"] for text in texts]
            together = [many.ask("minilm", text=text) for text in texts]
            for each, wanted in zip(together, alone, strict=True):
                assert np.abs(np.array(each.result().json()["embeddings"]) - np.array(wanted)).max() < 1e-5

    def test_batching_is_on_or_it_is_said_why_not(self, server: RunningServer) -> None:
        def batching(model: str) -> str:
            (detail,) = server.client.get(f"/models/{model}").json()["version_details"].values()
            assert detail["max_batch_size"] == 32
            words: str = detail["batching"]
            return words

        for model in ("digits", "minilm", "minilm-onnx", "classify", "add", "free-nm"):
            assert batching(model) == "on", model
        for model, why in {
            "fixed": 'input "x" has no free first dimension',
            "slow": 'input "x" has no free first dimension',
            "sequence-in": "it was not warmed up",
            "map-in": 'input "counts" has no free first dimension',
        }.items():
            assert why in batching(model), model
