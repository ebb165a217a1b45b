"""Equal requests run once: every waiter gets the result or the error, and different requests stay separate."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.inference.response_cache import CacheableRequest, ResponseCache, key_of, owning_its_memory
from frameworks.core.errors import InvalidInput, OutOfMemory
from frameworks.core.tenants import Tenant
from frameworks.types import (
    Answer,
    ClassifyAnswer,
    EmbedAnswer,
    MultiVectorAnswer,
    PairRequest,
    ScoreAnswer,
    TensorBatch,
    TextRequest,
)
from memory.result_cache import ENTRY_BYTES, ResultCache
from tests.app.inference.different_requests import DIFFERENT, Model, Sender, outcomes, tensor
from tests.support.loops import in_loop


class CacheHarness(Sender):
    """A response cache and its counters."""

    def __init__(self, max_bytes: int = 10**6) -> None:
        super().__init__()
        self.cache: ResultCache[Answer] = ResultCache(max_bytes, None)
        self.responses: ResponseCache = ResponseCache(self.cache, self.hits, self.misses)

    def check_idle(self) -> None:
        assert not self.responses._pending
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestConcurrentRequests:
    @in_loop
    async def test_equal_concurrent_requests_run_once(self) -> None:
        harness, model = CacheHarness(), Model()
        tasks = [harness.send(model, tensor(1, 2)) for _ in range(50)]
        await rounds()
        assert (model.num_runs, harness.joined) == (1, 49)
        model.gate.set()
        answers = await outcomes(*tasks)
        assert [answer["y"].tolist() for answer in answers] == [[1]] * 50
        assert harness.counts == (49, 1)
        assert [answer["y"].tolist() for answer in await outcomes(harness.send(model, tensor(1, 2)))] == [[1]]
        assert (model.num_runs, harness.counts, harness.joined) == (1, (50, 1), 49), "the cached answer needs no wait"
        harness.check_idle()

    @in_loop
    async def test_other_requests_run_independently(self) -> None:
        harness, slow, quick = CacheHarness(), Model(), Model()
        quick.gate.set()
        first = harness.send(slow, tensor(1))
        await rounds()
        assert (await outcomes(harness.send(quick, tensor(2))))[0]["y"].tolist() == [1]
        assert not first.done()
        slow.gate.set()
        await outcomes(first)
        assert (slow.num_runs, quick.num_runs, harness.counts) == (1, 1, (0, 2))

    @in_loop
    async def test_cancelled_first_request_hands_over(self) -> None:
        harness, model = CacheHarness(), Model()
        tasks = [harness.send(model, tensor(1)) for _ in range(10)]
        await rounds()
        for i in (0, 1, 2):
            tasks[i].cancel()
            await rounds()
            assert model.num_runs == i + 2, "one of the other requests runs"
        model.gate.set()
        answers = await outcomes(*tasks)
        assert [type(answer) for answer in answers[:3]] == [asyncio.CancelledError] * 3
        assert [answer["y"].tolist() for answer in answers[3:]] == [[4]] * 7
        assert harness.counts == (6, 4)
        harness.check_idle()

    @in_loop
    async def test_cancelled_waiter_leaves_others_unchanged(self) -> None:
        harness, model = CacheHarness(), Model()
        tasks = [harness.send(model, tensor(1)) for _ in range(4)]
        await rounds()
        tasks[2].cancel()
        await rounds()
        model.gate.set()
        answers = await outcomes(*tasks)
        assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [False, False, True, False]
        assert (model.num_runs, harness.counts) == (1, (2, 1))
        harness.check_idle()

    @in_loop
    async def test_all_cancelled_leaves_nothing_cached(self) -> None:
        harness, model = CacheHarness(), Model()
        tasks = [harness.send(model, tensor(1)) for _ in range(4)]
        await rounds()
        for each in tasks:
            each.cancel()
        await outcomes(*tasks)
        harness.check_idle()
        assert len(harness.cache) == 0
        model.gate.set()
        assert (await outcomes(harness.send(model, tensor(1))))[0]["y"].tolist() == [model.num_runs]

    @in_loop
    @pytest.mark.parametrize("error", [InvalidInput("x", "wrong"), OutOfMemory("too much"), RuntimeError("a bug")])
    async def test_error_reaches_all_waiters_uncached(self, error: Exception) -> None:
        def fail(run: int) -> Answer:
            if run == 1:
                raise error
            return {"y": np.array([run])}

        harness, model = CacheHarness(), Model(answers=fail)
        tasks = [harness.send(model, tensor(1)) for _ in range(5)]
        await rounds()
        model.gate.set()
        assert await outcomes(*tasks) == [error] * 5
        assert (model.num_runs, len(harness.cache)) == (1, 0)
        assert harness.counts == (0, 1), "an error is no cache hit"
        assert (await outcomes(harness.send(model, tensor(1))))[0]["y"].tolist() == [2]
        harness.check_idle()

    @in_loop
    async def test_error_without_waiters_is_silent(self) -> None:
        def fail(run: int) -> Answer:
            raise InvalidInput("x", "wrong")

        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        harness, model = CacheHarness(), Model(answers=fail)
        first, second = harness.send(model, tensor(1)), harness.send(model, tensor(1))
        await rounds()
        second.cancel()
        await outcomes(second)
        model.gate.set()
        assert isinstance((await outcomes(first))[0], InvalidInput)
        del first, second
        await rounds()
        assert complaints == []


class TestKeys:
    @in_loop
    @pytest.mark.parametrize("difference", DIFFERENT)
    async def test_any_difference_is_a_cache_miss(self, difference: str) -> None:
        harness, model = CacheHarness(), Model()
        model.gate.set()
        one, other = DIFFERENT[difference]
        for request in (one, other, one, other):
            await outcomes(harness.send(model, request))
        assert (model.num_runs, harness.counts) == (2, (2, 2))

    @in_loop
    async def test_other_version_or_load_is_a_miss(self) -> None:
        harness, model = CacheHarness(), Model()
        model.gate.set()
        for name in ("m", "n"):
            for serving in (("1", 1), ("1", 2), ("2", 1)):
                await outcomes(harness.send(model, tensor(1), name, serving))
        assert (model.num_runs, harness.hits.total()) == (6, 0)
        assert harness.misses == {("m", ""): 3, ("n", ""): 3}

    @in_loop
    async def test_tenants_share_neither_results_nor_runs(self) -> None:
        harness, model = CacheHarness(), Model()
        one, other = Tenant("one"), Tenant("other")
        tasks = [harness.send(model, tensor(1), tenant=tenant) for tenant in (one, other, one)]
        await rounds()
        assert (model.num_runs, harness.joined) == (2, 1)
        model.gate.set()
        await outcomes(*tasks)
        await outcomes(harness.send(model, tensor(1), tenant=Tenant("third")))
        assert model.num_runs == 3
        assert harness.hits == {("m", "one"): 1}
        assert harness.misses == {("m", "one"): 1, ("m", "other"): 1, ("m", "third"): 1}

    @in_loop
    async def test_sharing_tenants_share_results_and_runs(self) -> None:
        harness, model = CacheHarness(), Model()
        one, other = Tenant("one", shares_caches=True), Tenant("other", shares_caches=True)
        tasks = [harness.send(model, tensor(1), tenant=tenant) for tenant in (one, other)]
        await rounds()
        model.gate.set()
        await outcomes(*tasks, harness.send(model, tensor(1), tenant=other))
        assert (model.num_runs, harness.joined) == (1, 1)
        assert harness.hits == {("m", "other"): 2}

    @given(st.data())
    def test_keys_are_equal_only_for_equal_owners(self, data: st.DataObject) -> None:
        owners = st.tuples(st.sampled_from(["", "a", "b", "am"]), st.sampled_from(["m", "n", "a"]), st.integers(1, 2))
        requests: st.SearchStrategy[CacheableRequest] = st.one_of(
            st.lists(st.sampled_from(["", "a", "m"]), max_size=2).map(TextRequest),
            st.lists(st.tuples(st.sampled_from("am"), st.sampled_from("am")), max_size=2).map(PairRequest),
            st.lists(st.integers(0, 2), max_size=2).map(lambda x: tensor(*x)),
        )
        one, other = data.draw(owners), data.draw(owners)
        request = data.draw(requests)
        assert (key_of(one, request) == key_of(other, request)) == (one == other)

    def test_key_is_independent_of_memory_layout(self) -> None:
        contiguous = np.arange(12, dtype="f4").reshape(3, 4)
        for same in (contiguous.copy(), np.asfortranarray(contiguous), np.repeat(contiguous, 2, axis=0)[::2]):
            assert key_of(("m",), TensorBatch({"x": same})) == key_of(("m",), TensorBatch({"x": contiguous}))

    @in_loop
    @pytest.mark.parametrize("value", [[1, 2], [np.ones(2)], {"a": 1}, None])
    async def test_lists_and_maps_are_not_cached(self, value: Any) -> None:
        harness, model = CacheHarness(), Model()
        tasks = [harness.send(model, TensorBatch({"x": np.ones(1), "l": value})) for _ in range(3)]
        await rounds()
        model.gate.set()
        assert [answer["y"].tolist() for answer in await outcomes(*tasks)] == [[1], [2], [3]]
        assert (harness.counts, len(harness.cache)) == ((0, 0), 0)


class TestCachedAnswers:
    @in_loop
    async def test_cached_row_does_not_hold_its_batch(self) -> None:
        batch = np.arange(1000.0).reshape(100, 10)
        whole = np.arange(5)
        outputs: list[Callable[[int], Answer]] = [
            lambda _: {"y": batch[3:4], "z": whole, "l": [1]},
            lambda _: EmbedAnswer(batch[3:4], tokens=3),
        ]
        for i, answers in enumerate(outputs):
            harness, model = CacheHarness(), Model(answers=answers)
            model.gate.set()
            await outcomes(harness.send(model, tensor(i)))
            cached = (await outcomes(harness.send(model, tensor(i))))[0]
            assert (model.num_runs, harness.counts) == (1, (1, 1))
            rows = cached.embeddings if isinstance(cached, EmbedAnswer) else cached["y"]
            assert rows.base is None
            np.testing.assert_array_equal(rows, batch[3:4])
            assert cached.tokens == 3 if isinstance(cached, EmbedAnswer) else cached["z"] is whole
            assert harness.responses.size_bytes < ENTRY_BYTES + 600, "not the batch's 8000 bytes"

    @in_loop
    @pytest.mark.parametrize(
        ("answer", "least_bytes"),
        [
            ({"y": np.zeros(1000)}, 8000),
            ({"y": np.array(["x" * 5000], object)}, 5000),
            ({"y": [np.zeros(1000), {"a": np.zeros(500)}]}, 12_000),
            (EmbedAnswer(np.zeros((10, 100)), 1), 8000),
            (MultiVectorAnswer([np.zeros((10, 50))] * 2, 1), 8000),
            (ClassifyAnswer([[("a", 0.5)] * 10] * 10), 5000),
            (ScoreAnswer([0.5] * 100, 1), 3000),
        ],
    )
    async def test_size_includes_the_answer(self, answer: Answer, least_bytes: int) -> None:
        harness, model = CacheHarness(), Model(answers=lambda _: answer)
        model.gate.set()
        await outcomes(harness.send(model, tensor(1)))
        assert least_bytes < harness.responses.size_bytes < 2 * least_bytes + 2000 + ENTRY_BYTES

    @in_loop
    @pytest.mark.parametrize(
        "request_",
        [
            tensor(*range(2000)),
            TextRequest(["x" * 2000]),
            PairRequest([("x", "y" * 2000)]),
            TensorBatch({"x": np.array(["x" * 2000], object)}),
        ],
    )
    async def test_size_includes_the_request(self, request_: CacheableRequest) -> None:
        harness, model = CacheHarness(), Model()
        model.gate.set()
        await outcomes(harness.send(model, request_))
        assert harness.responses.size_bytes > 8000

    @in_loop
    async def test_response_beyond_cache_is_not_cached(self) -> None:
        harness, model = CacheHarness(max_bytes=2000), Model(answers=lambda run: {"y": np.full(1000, run)})
        model.gate.set()
        for run in (1, 2):
            assert (await outcomes(harness.send(model, tensor(1))))[0]["y"][0] == run
        assert (harness.responses.size_bytes, harness.responses.evictions, harness.counts) == (0, 0, (0, 2))

    @in_loop
    async def test_drop_removes_answers_of_one_model(self) -> None:
        harness, model = CacheHarness(), Model()
        model.gate.set()
        for name in ("m", "n"):
            await outcomes(harness.send(model, tensor(1), name))
        harness.responses.drop("m")
        for name in ("m", "n"):
            await outcomes(harness.send(model, tensor(1), name))
        assert (harness.misses, harness.hits) == ({("m", ""): 2, ("n", ""): 1}, {("n", ""): 1})


def test_sides_of_texts_have_own_keys() -> None:
    """A model of late interaction reads a query otherwise than a document."""
    requests = [TextRequest(["a"]), TextRequest(["a"], are_queries=True), TextRequest(["a"], vectors=("multi",))]
    assert len({key_of(("m",), request)[0] for request in requests}) == 3


def test_kept_vectors_of_tokens_are_copies() -> None:
    batch = np.zeros((4, 8), np.float32)
    kept = owning_its_memory(MultiVectorAnswer([batch[1:3]], 2))
    assert isinstance(kept, MultiVectorAnswer)
    assert kept.vectors[0].base is None
