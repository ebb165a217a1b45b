"""Requests that share batches: each gets the result of its single run; the batches are counted and described."""

import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import Start
from tests.e2e.load import (
    QUESTION,
    ROW,
    batches,
    batches_since,
    callers,
    slow_model,
    wait_for_inflight,
)
from tests.e2e.server import MODELS, WAIT_S, RunningServer, wait_until
from tests.e2e.test_text import EMBEDDERS, WORDS

CALLERS = 64


def teach(server: RunningServer, model: str, row: list[float]) -> None:
    """Run two large batches, so that the cost model knows them: its first batches are small otherwise."""
    for _ in range(2):
        server.infer(model, input_data=[row] * 32)


@contextmanager
def halted(server: RunningServer, seconds: float) -> Iterator[None]:
    """Halt the server in the block and for some seconds after it, so that many requests wait when it continues."""
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
        time.sleep(seconds)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


class TestBatches:
    def test_cancelled_request_leaves_its_batch(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path, rows="n")
        server = start(entry, gated=True).wait_ready()
        teach(server, "slow", ROW)
        before = batches(server, "slow")
        body = json.dumps(QUESTION).encode()
        head = b"POST /models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with callers(server, 3) as many, gate.closed():
            asked = [many.ask("slow", **QUESTION)]
            wait_for_inflight(server, 1)
            asked.append(many.ask("slow", input_data=[5, 6, 7, 8]))
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as closing:
                closing.sendall(head + body)
                asked.append(many.ask("slow", input_data=[[9, 9, 9, 9], [0, 0, 0, 0]]))
                wait_for_inflight(server, 4)
                assert server.sample("roundhouse_queue_depth", model="slow") == 3
            wait_until(lambda: server.sample("roundhouse_requests_total", model="slow", code="499") == 1)
            assert not asked[0].done(), "the connection was closed while the first batch ran"
            gate.open()
            data = [each.result().json()["output_data"] for each in asked]
            assert data == [ROW, [5, 6, 7, 8], [[9, 9, 9, 9], [0, 0, 0, 0]]]
        # The two others shared a batch, without the cancelled request.
        assert batches_since(before, server, "slow") == (2, 4)
        assert server.inflight("slow") == 0

    @pytest.mark.parametrize("model", EMBEDDERS)
    def test_batched_texts_equal_single_ones(self, model: str, server: RunningServer) -> None:
        chance = random.Random(8)
        texts = [" ".join(chance.choices(WORDS, k=1 + i * i // 80)) for i in range(CALLERS)]
        chance.shuffle(texts)
        alone = [server.infer(model, text=text)["embeddings"] for text in texts]
        before = batches(server, model)
        rounds = 0
        with callers(server, CALLERS) as many:
            # How many requests wait at once depends on the machine.
            while rounds < 20:
                rounds += 1
                with halted(server, 0.1 * (rounds - 1)):
                    asked = [many.ask(model, text=text) for text in texts]
                answers = [each.result() for each in asked]
                for answer, wanted in zip(answers, alone, strict=True):
                    assert answer.status_code == 200, answer.text
                    assert np.abs(np.array(answer.json()["embeddings"]) - np.array(wanted)).max() < 1e-5
                count, rows = batches_since(before, server, model)
                assert rows == rounds * CALLERS
                if count < rounds * CALLERS:
                    break
        assert count < rounds * CALLERS, "some of them shared a batch"

    def test_texts_changed_by_padding_equal_single_ones(self, server: RunningServer) -> None:
        texts = ["the cat sat on the mat . " * (1 + i % 5) for i in range(20)]
        alone = [np.array(server.infer("fnet", text=text)["embeddings"]) for text in texts]
        with callers(server, len(texts)) as many:
            asked = [many.ask("fnet", text=text) for text in texts]
            together = [np.array(each.result().json()["embeddings"]) for each in asked]
        one_request = server.infer("fnet", text=texts)["embeddings"]
        for single, shared, row in zip(alone, together, one_request, strict=True):
            assert np.abs(shared - single).max() < 1e-5
            assert np.abs(np.array(row) - single).max() < 1e-5

    def test_batched_tensors_equal_single_ones(self, server: RunningServer) -> None:
        random = np.random.default_rng(3)
        images = [random.integers(0, 17, (1 + i % 3, 64)).tolist() for i in range(CALLERS)]
        questions = [{"inputs": {"image": image}} for image in images]
        alone = [server.infer("digits", **question)["outputs"] for question in questions]
        rows_asked = sum(map(len, images))
        before = batches(server, "digits")
        rounds = 0
        with callers(server, CALLERS) as many:
            # How many requests the event loop reads at once depends on the machine.
            while rounds < 50:
                rounds += 1
                answers = [each.result() for each in [many.ask("digits", **question) for question in questions]]
                for answer, wanted in zip(answers, alone, strict=True):
                    assert answer.status_code == 200, answer.text
                    check_same(answer.json()["outputs"], wanted)
                count, rows = batches_since(before, server, "digits")
                assert rows == rounds * rows_asked
                if count < rounds * CALLERS:
                    break
        assert count < rounds * CALLERS, "some of them shared a batch"

    def test_requests_queued_during_run_share_next(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path, rows="n")
        server = start(entry, gated=True).wait_ready()
        teach(server, "slow", ROW)
        before = batches(server, "slow")
        with callers(server, CALLERS) as many, gate.closed():
            asked = [many.ask("slow", input_data=[i, i + 0.25, -i, 0.5]) for i in range(CALLERS)]
            wait_for_inflight(server, CALLERS)
            gate.open()
            for i, answer in enumerate(asked):
                assert answer.result().json()["output_data"] == [i, i + 0.25, -i, 0.5]
        count, rows = batches_since(before, server, "slow")
        assert rows == CALLERS
        # At most 32 rows in each; the first may have been alone.
        assert 2 <= count <= 8
        assert server.sample("roundhouse_batch_size_bucket", model="slow", le="32") == count + before[0]

    def test_first_batches_of_model_are_small(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path, rows="n")
        server = start(entry, gated=True).wait_ready()
        with callers(server, 16) as many, gate.closed():
            asked = [many.ask("slow", **QUESTION) for _ in range(16)]
            wait_for_inflight(server, 16)
            gate.open()
            assert [each.result().json()["output_data"] for each in asked] == [ROW] * 16
        below = {rows: server.sample("roundhouse_batch_size_bucket", model="slow", le=rows) for rows in ("1", "2", "4")}
        assert below["1"] >= 2
        assert below["2"] - below["1"] >= 1, "they grow"
        assert batches(server, "slow")[0] < 16


def check_same(given: Any, wanted: Any) -> None:
    """Compare labels and shapes exactly, probabilities within 1e-5."""
    assert given["output_label"] == wanted["output_label"]
    one, other = given["output_probability"], wanted["output_probability"]
    assert one["shape"] == other["shape"]
    for probabilities, expected in zip(one["data"], other["data"], strict=True):
        assert probabilities == pytest.approx(expected, abs=1e-5)


class TestModels:
    @pytest.mark.extended
    def test_instances_run_side_by_side(self, start: Start, tmp_path: Path) -> None:
        entry, gate = slow_model(tmp_path)
        minilm = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\ninstances = 2\n'
        server = start(f"{entry}instances = 2\n{minilm}", gated=True).wait_ready()
        for name in ("slow", "minilm"):
            assert server.wait_for_log("model ready", model=name)["instances"] == 2
        with callers(server, 16) as many:
            with gate.closed():
                asked = [many.ask("slow", **QUESTION) for _ in range(2)]
                wait_for_inflight(server, 2)
                assert server.sample("roundhouse_queue_depth", model="slow") == 0, "each has its instance"
            assert [each.result().json()["output_data"] for each in asked] == [ROW, ROW]
            texts = [" ".join(WORDS[: 1 + i * 3]) for i in range(16)]
            alone = [server.infer("minilm", text=text)["embeddings"] for text in texts]
            together = [many.ask("minilm", text=text) for text in texts]
            for each, wanted in zip(together, alone, strict=True):
                assert np.abs(np.array(each.result().json()["embeddings"]) - np.array(wanted)).max() < 1e-5

    def test_batching_described_with_reason_when_off(self, server: RunningServer) -> None:
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
            "sequence-in": 'input "parts" has no free first dimension',
            "map-in": 'input "counts" has no free first dimension',
        }.items():
            assert why in batching(model), model

    def test_unwarmed_model_is_described_with_reason(self, server: RunningServer) -> None:
        described = {model["name"]: model["warm_up"] for model in server.client.get("/models").json()["models"]}
        assert described["digits"] == described["minilm"] == described["tiny-llama"] == "done"
        assert "the graph refuses made-up values" in described["sequence-in"]
        detail = server.client.get("/models/sequence-in").json()
        assert detail["version_details"]["1"]["warm_up"] == detail["warm_up"] == described["sequence-in"]
