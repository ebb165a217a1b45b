"""Equal requests run once: every waiter gets the result or the error, and different requests stay separate."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from app.inference.response_cache import CacheableRequest, ResponseCache, _key_of
from frameworks.errors import InvalidInput, OutOfMemory
from frameworks.types import (
    Answer,
    ClassifyAnswer,
    EmbedAnswer,
    PairRequest,
    ScoreAnswer,
    TensorBatch,
    TextRequest,
)
from memory.result_cache import ENTRY_BYTES, ResultCache
from tests.support.loops import in_loop, task


def tensor(*x: object, dtype: str = "f4", outputs: tuple[str, ...] | None = None) -> TensorBatch:
    return TensorBatch({"x": np.array(x, dtype)}, outputs)


@dataclass
class Model:
    """A model that answers on release. `asked`: number of runs."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Callable[[int], Answer] = lambda times: {"y": np.array([times])}
    asked: int = 0

    async def __call__(self) -> Answer:
        self.asked += 1
        times = self.asked
        await self.gate.wait()
        return self.answers(times)


class Desk:
    """A response cache and its counters."""

    def __init__(self, max_bytes: int = 10**6) -> None:
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.cache: ResultCache[Answer] = ResultCache(max_bytes, None)
        self.kept = ResponseCache(self.cache, self.hits, self.misses)
        self.joined = 0

    def ask(
        self, model: Model, question: CacheableRequest, name: str = "m", serving: object = 1
    ) -> "asyncio.Task[Any]":
        def joined() -> None:
            self.joined += 1

        return task(self.kept.get_or_run(name, (serving,), question, model, joined))

    @property
    def counts(self) -> tuple[int, int]:
        """Return the hits and misses of m."""
        return self.hits["m"], self.misses["m"]

    def check_idle(self) -> None:
        assert not self.kept._pending
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def outcomes(*tasks: "asyncio.Task[Any]") -> list[Any]:
    """Return answers and errors. Raises TimeoutError if a request hangs."""
    return list(await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60))


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class TestOneFlight:
    @in_loop
    async def test_equal_concurrent_requests_run_once(self) -> None:
        desk, model = Desk(), Model()
        asked = [desk.ask(model, tensor(1, 2)) for _ in range(50)]
        await rounds()
        assert (model.asked, desk.joined) == (1, 49)
        model.gate.set()
        answers = await outcomes(*asked)
        assert [answer["y"].tolist() for answer in answers] == [[1]] * 50
        assert desk.counts == (49, 1)
        assert [answer["y"].tolist() for answer in await outcomes(desk.ask(model, tensor(1, 2)))] == [[1]]
        assert (model.asked, desk.counts, desk.joined) == (1, (50, 1), 49), "from the cache, nobody waited for"
        desk.check_idle()

    @in_loop
    async def test_other_requests_run_independently(self) -> None:
        desk, slow, quick = Desk(), Model(), Model()
        quick.gate.set()
        first = desk.ask(slow, tensor(1))
        await rounds()
        assert (await outcomes(desk.ask(quick, tensor(2))))[0]["y"].tolist() == [1]
        assert not first.done()
        slow.gate.set()
        await outcomes(first)
        assert (slow.asked, quick.asked, desk.counts) == (1, 1, (0, 2))

    @in_loop
    async def test_cancelled_first_request_hands_over(self) -> None:
        desk, model = Desk(), Model()
        asked = [desk.ask(model, tensor(1)) for _ in range(10)]
        await rounds()
        for leaving in (0, 1, 2):
            asked[leaving].cancel()
            await rounds()
            assert model.asked == leaving + 2, "one of those who are left"
        model.gate.set()
        answers = await outcomes(*asked)
        assert [type(answer) for answer in answers[:3]] == [asyncio.CancelledError] * 3
        assert [answer["y"].tolist() for answer in answers[3:]] == [[4]] * 7
        assert desk.counts == (6, 4)
        desk.check_idle()

    @in_loop
    async def test_cancelled_waiter_harms_no_others(self) -> None:
        desk, model = Desk(), Model()
        asked = [desk.ask(model, tensor(1)) for _ in range(4)]
        await rounds()
        asked[2].cancel()
        await rounds()
        model.gate.set()
        answers = await outcomes(*asked)
        assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [False, False, True, False]
        assert (model.asked, desk.counts) == (1, (2, 1))
        desk.check_idle()

    @in_loop
    async def test_all_cancelled_leaves_nothing_cached(self) -> None:
        desk, model = Desk(), Model()
        asked = [desk.ask(model, tensor(1)) for _ in range(4)]
        await rounds()
        for each in asked:
            each.cancel()
        await outcomes(*asked)
        desk.check_idle()
        assert len(desk.cache) == 0
        model.gate.set()
        assert (await outcomes(desk.ask(model, tensor(1))))[0]["y"].tolist() == [model.asked]

    @in_loop
    @pytest.mark.parametrize("error", [InvalidInput("x", "wrong"), OutOfMemory("too much"), RuntimeError("a bug")])
    async def test_error_reaches_all_waiters_uncached(self, error: Exception) -> None:
        def fail(times: int) -> Answer:
            if times == 1:
                raise error
            return {"y": np.array([times])}

        desk, model = Desk(), Model(answers=fail)
        asked = [desk.ask(model, tensor(1)) for _ in range(5)]
        await rounds()
        model.gate.set()
        assert await outcomes(*asked) == [error] * 5
        assert (model.asked, len(desk.cache)) == (1, 0)
        assert desk.counts == (0, 1), "who got an error got no answer from here"
        assert (await outcomes(desk.ask(model, tensor(1))))[0]["y"].tolist() == [2]
        desk.check_idle()

    @in_loop
    async def test_error_without_waiters_is_silent(self) -> None:
        def fail(times: int) -> Answer:
            raise InvalidInput("x", "wrong")

        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        desk, model = Desk(), Model(answers=fail)
        first, second = desk.ask(model, tensor(1)), desk.ask(model, tensor(1))
        await rounds()
        second.cancel()
        await outcomes(second)
        model.gate.set()
        assert isinstance((await outcomes(first))[0], InvalidInput)
        del first, second
        await rounds()
        assert complaints == []


ONE = TextRequest(["a", "b"])
DIFFERENT: dict[str, tuple[CacheableRequest, CacheableRequest]] = {
    "dtype": (tensor(0, 0), tensor(0, 0, dtype="i4")),
    "dtype of one size": (tensor(1, dtype="i8"), tensor(1, dtype="u8")),
    "shape": (tensor(1, 2, 3, 4), TensorBatch({"x": np.array([[1, 2], [3, 4]], "f4")})),
    "shape of nothing": (TensorBatch({"x": np.empty((0, 2))}), TensorBatch({"x": np.empty((0, 3))})),
    "bytes": (tensor(1, 2), tensor(1, 3)),
    "zeros of both signs": (tensor(0.0), tensor(-0.0)),
    "outputs": (tensor(1, outputs=("y",)), tensor(1, outputs=("z",))),
    "all outputs": (tensor(1), tensor(1, outputs=("y",))),
    "name of the input": (TensorBatch({"x": np.ones(1)}), TensorBatch({"z": np.ones(1)})),
    "which input": (
        TensorBatch({"x": np.ones(1), "z": np.zeros(1)}),
        TensorBatch({"x": np.zeros(1), "z": np.ones(1)}),
    ),
    "one input less": (TensorBatch({"x": np.ones(1), "z": np.zeros(1)}), TensorBatch({"x": np.ones(1)})),
    "strings": (
        TensorBatch({"x": np.array(["ab", "c"], object)}),
        TensorBatch({"x": np.array(["a", "bc"], object)}),
    ),
    "texts": (ONE, TextRequest(["b", "a"])),
    "how many texts": (TextRequest(["ab"]), TextRequest(["a", "b"])),
    "normalize": (ONE, TextRequest(["a", "b"], normalize=False)),
    "normalize, said": (ONE, TextRequest(["a", "b"], normalize=True)),
    "truncate": (ONE, TextRequest(["a", "b"], truncate=False)),
    "top_k": (ONE, TextRequest(["a", "b"], top_k=1)),
    "dimensions": (ONE, TextRequest(["a", "b"], dimensions=1)),
    "pairs and texts": (ONE, PairRequest([("a", "b")])),
    "pairs": (PairRequest([("a", "b"), ("a", "c")]), PairRequest([("a", "b"), ("c", "a")])),
    "truncated pairs": (PairRequest([("a", "b")]), PairRequest([("a", "b")], truncate=False)),
}


class TestWhatIsTheSame:
    @in_loop
    @pytest.mark.parametrize("what", DIFFERENT)
    async def test_any_difference_is_a_cache_miss(self, what: str) -> None:
        desk, model = Desk(), Model()
        model.gate.set()
        one, other = DIFFERENT[what]
        for question in (one, other, one, other):
            await outcomes(desk.ask(model, question))
        assert (model.asked, desk.counts) == (2, (2, 2))

    @in_loop
    async def test_other_version_or_load_is_a_miss(self) -> None:
        desk, model = Desk(), Model()
        model.gate.set()
        for name in ("m", "n"):
            for serving in (("1", 1), ("1", 2), ("2", 1)):
                await outcomes(desk.ask(model, tensor(1), name, serving))
        assert (model.asked, desk.hits.total()) == (6, 0)
        assert desk.misses == {"m": 3, "n": 3}

    def test_memory_layout_does_not_matter(self) -> None:
        straight = np.arange(12, dtype="f4").reshape(3, 4)
        for same in (straight.copy(), np.asfortranarray(straight), np.repeat(straight, 2, axis=0)[::2]):
            assert _key_of("m", 1, TensorBatch({"x": same})) == _key_of("m", 1, TensorBatch({"x": straight}))

    @in_loop
    @pytest.mark.parametrize("value", [[1, 2], [np.ones(2)], {"a": 1}, None])
    async def test_lists_and_maps_are_not_cached(self, value: Any) -> None:
        desk, model = Desk(), Model()
        asked = [desk.ask(model, TensorBatch({"x": np.ones(1), "l": value})) for _ in range(3)]
        await rounds()
        model.gate.set()
        assert [answer["y"].tolist() for answer in await outcomes(*asked)] == [[1], [2], [3]]
        assert (desk.counts, len(desk.cache)) == ((0, 0), 0)


class TestWhatIsKept:
    @in_loop
    async def test_cached_row_does_not_hold_its_batch(self) -> None:
        batch = np.arange(1000.0).reshape(100, 10)
        whole = np.arange(5)
        wholes: list[Callable[[int], Answer]] = [
            lambda _: {"y": batch[3:4], "z": whole, "l": [1]},
            lambda _: EmbedAnswer(batch[3:4], tokens=3),
        ]
        for i, answers in enumerate(wholes):
            desk, model = Desk(), Model(answers=answers)
            model.gate.set()
            await outcomes(desk.ask(model, tensor(i)))
            kept = (await outcomes(desk.ask(model, tensor(i))))[0]
            assert (model.asked, desk.counts) == (1, (1, 1))
            rows = kept.embeddings if isinstance(kept, EmbedAnswer) else kept["y"]
            assert rows.base is None
            np.testing.assert_array_equal(rows, batch[3:4])
            assert kept.tokens == 3 if isinstance(kept, EmbedAnswer) else kept["z"] is whole
            assert desk.kept.size_bytes < ENTRY_BYTES + 600, "not the batch's 8000 bytes"

    @in_loop
    @pytest.mark.parametrize(
        ("answer", "least_bytes"),
        [
            ({"y": np.zeros(1000)}, 8000),
            ({"y": np.array(["x" * 5000], object)}, 5000),
            ({"y": [np.zeros(1000), {"a": np.zeros(500)}]}, 12_000),
            (EmbedAnswer(np.zeros((10, 100)), 1), 8000),
            (ClassifyAnswer([[("a", 0.5)] * 10] * 10), 5000),
            (ScoreAnswer([0.5] * 100, 1), 3000),
        ],
    )
    async def test_cached_bytes_are_counted(self, answer: Answer, least_bytes: int) -> None:
        desk, model = Desk(), Model(answers=lambda _: answer)
        model.gate.set()
        await outcomes(desk.ask(model, tensor(1)))
        assert least_bytes < desk.kept.size_bytes < 2 * least_bytes + 2000 + ENTRY_BYTES

    @in_loop
    @pytest.mark.parametrize(
        "question",
        [
            tensor(*range(2000)),
            TextRequest(["x" * 2000]),
            PairRequest([("x", "y" * 2000)]),
            TensorBatch({"x": np.array(["x" * 2000], object)}),
        ],
    )
    async def test_bytes_of_request_are_counted(self, question: CacheableRequest) -> None:
        desk, model = Desk(), Model()
        model.gate.set()
        await outcomes(desk.ask(model, question))
        assert desk.kept.size_bytes > 8000

    @in_loop
    async def test_response_beyond_cache_is_not_cached(self) -> None:
        desk, model = Desk(max_bytes=2000), Model(answers=lambda times: {"y": np.full(1000, times)})
        model.gate.set()
        for times in (1, 2):
            assert (await outcomes(desk.ask(model, tensor(1))))[0]["y"][0] == times
        assert (desk.kept.size_bytes, desk.kept.evictions, desk.counts) == (0, 0, (0, 2))

    @in_loop
    async def test_dropped_model_loses_its_responses(self) -> None:
        desk, model = Desk(), Model()
        model.gate.set()
        for name in ("m", "n"):
            await outcomes(desk.ask(model, tensor(1), name))
        desk.kept.drop("m")
        for name in ("m", "n"):
            await outcomes(desk.ask(model, tensor(1), name))
        assert (desk.misses, desk.hits) == ({"m": 2, "n": 1}, {"n": 1})
