"""Many requests at once: each gets its own response, by priority and deadline, or a refusal with a reason."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.configs import DIGITS
from tests.e2e.conftest import Start
from tests.e2e.load import (
    QUESTION,
    ROW,
    batches,
    batches_since,
    callers,
    occupy_worker,
    slow_model,
    wait_for_done,
    wait_for_inflight,
)
from tests.e2e.server import RunningServer, assert_refused, wait_until
from tests.e2e.test_text import WORDS


class TestFields:
    @pytest.mark.parametrize("question", [{"input_data": [0] * 64}, {"inputs": {"image": [[0] * 64]}}])
    @pytest.mark.parametrize(
        ("field", "value", "words"),
        [
            ("priority", 10, "expected an integer from 1 (first) to 9, got 10"),
            ("priority", 2**31 - 1, "expected an integer from 1 (first) to 9, got 2147483647"),
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
    def test_field_out_of_range_refused_by_name(
        self, question: dict[str, Any], field: str, value: object, words: str, server: RunningServer
    ) -> None:
        answer = server.client.post("/models/digits/infer", json=question | {field: value})
        assert_refused(answer, 400, "invalid_input", f"{field}: {words}")

    @pytest.mark.parametrize("model", ["digits", "minilm-onnx"])
    def test_fields_accepted_with_every_body(self, model: str, server: RunningServer) -> None:
        questions: list[dict[str, Any]] = (
            [{"text": "a"}] if model != "digits" else [{"input_data": [0] * 64}, {"inputs": {"image": [[0] * 64]}}]
        )
        for question in questions:
            plain = server.infer(model, **question)
            for priority in (1, 5, 9):
                answer = server.infer(model, **question, priority=priority, timeout_ms=60_000)
                assert answer.keys() == plain.keys()


class TestOrder:
    def test_urgent_requests_run_first(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path)
        server = start(f"{entry}[scheduling]\nageing_ms = 1e6\n", gated=True).wait_ready()
        order: list[int] = []
        with callers(server, 5) as many, gate.closed():
            asked = []
            for i, priority in enumerate((5, 5, 9, 5, 1)):
                asked.append(many.ask("slow", **QUESTION, priority=priority))
                wait_for_inflight(server, i + 1)
            for _ in asked:
                gate.allow_one()
                wait_for_done(asked, len(order) + 1)
                order += [i for i, each in enumerate(asked) if each.done() and i not in order]
            assert [each.result().status_code for each in asked] == [200] * 5
        assert order == [0, 1, 4, 3, 2], "the first runs, the second was handed to the worker thread"


class TestDeadlines:
    def test_late_request_refused_and_never_executed(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path)
        server = start(entry, gated=True).wait_ready()
        with callers(server, 6) as many, gate.closed():
            first = many.ask("slow", **QUESTION)
            wait_for_inflight(server, 1)
            started_s = time.monotonic()
            late = [many.ask("slow", **QUESTION, timeout_ms=150) for _ in range(3)]
            for answer in late:
                message = assert_refused(answer.result(), 504, "deadline_exceeded", 'model "slow"', "timeout_ms")
                assert "allow more time" in message
            assert time.monotonic() - started_s >= 0.15
            assert not first.done(), "the refusal does not wait for the batch that runs"
            assert (server.inflight("slow"), server.sample("roundhouse_queue_depth", model="slow")) == (1, 0)
            gate.open()
            assert first.result().status_code == 200
            assert server.infer("slow", **QUESTION, timeout_ms=60_000)["output_data"] == ROW
        assert batches(server, "slow") == (2, 2)
        assert server.sample("roundhouse_requests_total", model="slow", code="504") == 3
        assert server.sample("roundhouse_rejected_total") == 0, "a deadline is no overload"

    def test_running_request_refused_at_deadline(self, start: Start, tmp_path: Path) -> None:
        """The default deadline holds where the request names none."""
        entry, gate = slow_model(tmp_path)
        server = start(f"{entry}[scheduling]\ndefault_timeout_ms = 100\n", gated=True).wait_ready()
        with gate.closed():
            for body in ({}, {"timeout_ms": 50}):
                answer = server.client.post("/models/slow/infer", json=QUESTION | body)
                assert_refused(answer, 504, "deadline_exceeded")
        assert server.infer("slow", **QUESTION, timeout_ms=60_000)["output_data"] == ROW

    def test_texts_past_deadline_not_executed(self, server: RunningServer) -> None:
        texts = [" ".join(random.Random(i).choices(WORDS, k=200)) for i in range(400)]
        before = batches(server, "minilm-onnx")
        answer = server.client.post("/models/minilm-onnx/infer", json={"text": texts, "timeout_ms": 100})
        assert_refused(answer, 504, "deadline_exceeded")
        assert len(server.infer("minilm-onnx", text="next")["embeddings"]) == 1
        assert batches_since(before, server, "minilm-onnx")[1] < len(texts), "the rest was dropped"


class TestOverload:
    @pytest.mark.parametrize("whose", ["the server", 'model "slow"'])
    def test_requests_past_queue_bound_refused(self, whose: str, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path)
        bound = "max_queue_size = 3\n" if whose != "the server" else "[scheduling]\nmax_queue_size = 3\n"
        server = start(entry + bound, gated=True).wait_ready()
        started_s = time.monotonic()
        with callers(server, 24) as many:
            for refused in (19, 38):
                with gate.closed():
                    asked = occupy_worker(server, lambda: many.ask("slow", **QUESTION))
                    asked += [many.ask("slow", **QUESTION) for _ in range(22)]
                    wait_for_done(asked, 19)
                answers = [each.result() for each in asked]
                # One runs, one is next, three wait.
                assert sum(answer.status_code == 200 for answer in answers) == 5
                for answer in answers:
                    if answer.status_code == 200:
                        assert answer.json()["output_data"] == ROW
                        continue
                    assert_refused(answer, 503, "overloaded", whose, "3 requests are waiting, its max_queue_size")
                    # The time that three runs take; no run took longer than the test until now.
                    assert 1 <= int(answer.headers["retry-after"]) <= 1 + 3 * (time.monotonic() - started_s)
                assert server.sample("roundhouse_rejected_total", reason="overloaded") == refused
                assert server.sample("roundhouse_requests_total", code="503") == refused
        assert server.infer("slow", **QUESTION)["output_data"] == ROW
        assert (server.inflight("slow"), server.sample("roundhouse_queue_depth")) == (0, 0)

    def test_retry_after_follows_run_time(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path)
        server = start(f"{entry}max_queue_size = 8\n", gated=True).wait_ready()
        started_s = time.monotonic()
        with callers(server, 16) as many:
            for _ in range(2):
                with gate.closed():
                    asked_one = many.ask("slow", **QUESTION)
                    wait_for_inflight(server, 1)
                    time.sleep(0.3)
                assert asked_one.result().status_code == 200
            with gate.closed():
                asked = occupy_worker(server, lambda: many.ask("slow", **QUESTION))
                asked += [many.ask("slow", **QUESTION) for _ in range(8)]
                wait_until(lambda: server.sample("roundhouse_queue_depth", model="slow") == 8)
                answer = server.client.post("/models/slow/infer", json=QUESTION)
                assert_refused(answer, 503, "overloaded", "8 requests are waiting")
                # Eight runs of 0.3 s or more; none took longer than the test until now.
                assert 2 <= int(answer.headers["retry-after"]) <= 1 + 8 * (time.monotonic() - started_s)
            assert all(each.result().status_code == 200 for each in asked)

    def test_one_request_at_a_time_per_server(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path)
        config = f"{DIGITS}{entry}[scheduling]\nmax_concurrent_requests = 1\n"
        server = start(config, gated=True).wait_ready()
        with callers(server, 2) as many, gate.closed():
            first = many.ask("slow", **QUESTION)
            wait_for_inflight(server, 1)
            for model in ("slow", "digits", "no-such-model"):
                answer = server.client.post(f"/models/{model}/infer", json={"input_data": [0] * 64})
                assert_refused(
                    answer, 503, "overloaded", "the server: 1 requests are in flight, its max_concurrent_requests"
                )
                assert int(answer.headers["retry-after"]) >= 1
            assert server.client.get("/models").status_code == 200, "only inference is bounded"
            gate.open()
            assert first.result().status_code == 200
        assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]

    def test_one_request_at_a_time_per_model(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path)
        server = start(f"{entry}max_concurrent_requests = 1\n{DIGITS}", gated=True).wait_ready()
        with callers(server, 2) as many, gate.closed():
            first = many.ask("slow", **QUESTION)
            wait_for_inflight(server, 1)
            answer = server.client.post("/models/slow/infer", json=QUESTION)
            assert_refused(answer, 503, "overloaded", 'model "slow": 1 requests are in flight')
            # A request that names the model in its body is refused too, before its tensors are decoded.
            answer = server.client.post("/infer", json={"model_name": "slow", "input_data": [[[]], 1]})
            assert_refused(answer, 503, "overloaded", 'model "slow": 1 requests are in flight')
            assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]
            gate.open()
            assert first.result().status_code == 200
        assert server.infer("slow", **QUESTION)["output_data"] == ROW
