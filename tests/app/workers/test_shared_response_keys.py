"""Which requests of workers are equal, and the responses that they share."""

from typing import Any

import numpy as np
import pytest

from app.inference.response_cache import CacheableRequest
from app.workers import worker_responses
from frameworks.core.tenants import Tenant
from frameworks.models.replicas.control import ControlLink
from frameworks.types import Answer, ClassifyAnswer, EmbedAnswer, PairRequest, ScoreAnswer, TensorBatch, TextRequest
from tests.app.inference.different_requests import DIFFERENT, Model, outcomes, tensor
from tests.app.workers.sharing_responses import serving
from tests.support.loops import in_loop, soon


class TestKeys:
    @in_loop
    @pytest.mark.parametrize("difference", DIFFERENT)
    async def test_any_difference_is_a_cache_miss(self, difference: str) -> None:
        async with serving() as (_, workers):
            model = Model()
            model.gate.set()
            for worker in workers:
                for request in DIFFERENT[difference]:
                    await outcomes(worker.send(model, request))
            assert (model.num_runs, [worker.counts for worker in workers]) == (2, [(0, 2), (2, 0)])

    @in_loop
    async def test_tenants_and_loads_share_nothing(self) -> None:
        async with serving() as (_, workers):
            model = Model()
            model.gate.set()
            owners = [(name, serving_id, tenant) for name in "mn" for serving_id in (1, 2) for tenant in ("", "a", "b")]
            for worker in workers:
                for name, serving_id, tenant in owners:
                    await outcomes(worker.send(model, tensor(1), name, serving_id, Tenant(tenant)))
            assert (model.num_runs, workers[1].hits.total()) == (12, 12)

    @in_loop
    async def test_sharing_tenants_share_results(self) -> None:
        async with serving() as (_, (one, other)):
            model = Model()
            model.gate.set()
            await outcomes(one.send(model, tensor(1), tenant=Tenant("one", shares_caches=True)))
            await outcomes(other.send(model, tensor(1), tenant=Tenant("other", shares_caches=True)))
            assert (model.num_runs, other.hits) == (1, {("m", "other"): 1})

    @in_loop
    @pytest.mark.parametrize(
        "request_",
        [
            TensorBatch({"x": np.arange(100_000.0)}),
            TensorBatch({"x": np.arange(12.0).reshape(3, 4).T}),
            TensorBatch({"x": np.array(1.5)}),
            TextRequest(["é" * 200_000]),
            TextRequest([], token_ids=[[1] * 100_000]),
            PairRequest([("a" * 100_000, "b" * 100_000)]),
        ],
    )
    async def test_request_of_any_size_is_cached(self, request_: CacheableRequest) -> None:
        async with serving() as (_, (one, other)):
            model = Model()
            model.gate.set()
            for worker in (one, other):
                await outcomes(worker.send(model, request_))
            assert (model.num_runs, other.counts) == (1, (1, 0))

    @in_loop
    @pytest.mark.parametrize(
        "request_",
        [TensorBatch({"x": [1, 2]}), TextRequest(["\ud800"]), TextRequest([], token_ids=[[2**70]])],
    )
    async def test_request_without_key_is_not_cached(self, request_: CacheableRequest) -> None:
        async with serving() as (server, (one, other)):
            model = Model()
            tasks = [worker.send(model, request_) for worker in (one, other, one)]
            await soon(lambda: model.num_runs == 3)
            model.gate.set()
            await outcomes(*tasks)
            assert (one.counts, len(server.cache)) == ((0, 0), 0)


class TestAnswers:
    @in_loop
    @pytest.mark.parametrize(
        "answer",
        [
            {"y": np.arange(6, dtype="f2").reshape(2, 3), "z": np.array(["a", "é"], object), "e": np.empty((0, 3))},
            {"y": [np.arange(3), {1: 0.25, 2: 0.5}], "n": None},
            {"y": np.zeros(300_000)},
            EmbedAnswer(np.ones((2, 3), "f4"), 7),
            ClassifyAnswer([[("a", 0.25), ("b", 0.125)]]),
            ScoreAnswer([0.5, 0.25], 3),
        ],
    )
    async def test_cached_answer_equals_the_first(self, answer: Answer) -> None:
        async with serving(max_bytes=10**7) as (server, (one, other)):
            model = Model(answers=lambda _: answer)
            model.gate.set()
            (first,) = await outcomes(one.send(model, tensor(1)))
            await soon(lambda: len(server.cache) == 1)
            (cached,) = await outcomes(other.send(model, tensor(1)))
            assert (model.num_runs, type(cached)) == (1, type(first))
            np.testing.assert_equal(_plain(cached), _plain(answer))
            if isinstance(answer, dict):
                assert cached["y"] is not answer["y"]

    @in_loop
    @pytest.mark.parametrize(
        "answer", [{"y": np.zeros(300)}, {"y": np.array([1j])}, {"y": np.array(["\ud800"], object)}, {"y": 2**70}]
    )
    async def test_unsendable_answer_lets_all_run(self, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_responses, "MAX_ANSWER_BYTES", 2000)
        async with serving(3) as (server, workers):
            first, model = Model(answers=lambda _: answer), Model(answers=lambda _: answer)
            tasks = [workers[0].send(first, tensor(1))]
            await server.asked(1)
            tasks += [worker.send(model, tensor(1)) for worker in workers[1:]]
            await server.asked(3)
            first.gate.set()
            await soon(lambda: model.num_runs == 2)
            model.gate.set()
            assert await outcomes(*tasks) == [answer] * 3
            assert (first.num_runs, len(server.cache)) == (1, 0)
            server.check_idle()

    @in_loop
    async def test_full_link_carries_no_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving() as (server, (one, other)):
            model = Model()
            model.gate.set()
            await outcomes(one.send(model, tensor(1)))
            monkeypatch.setattr(ControlLink, "is_full", True)
            for request in (tensor(1), tensor(2)):
                await outcomes(other.send(model, request))
            await soon(lambda: len(server.responses._runs) == 0)
            assert (model.num_runs, len(server.cache)) == (3, 1)


def _plain(answer: Any) -> Any:
    """Return the content of an answer, which numpy compares."""
    if isinstance(answer, EmbedAnswer):
        return [answer.embeddings, answer.tokens]
    return answer if isinstance(answer, dict) else [getattr(answer, name) for name in answer.__slots__]
