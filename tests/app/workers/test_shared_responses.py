"""Equal requests of several workers run once, over real sockets: in time, cancelled, failed, and with losses."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.errors import QuotaExceeded
from app.inference.response_cache import CacheableRequest
from app.workers import worker_responses
from app.workers.shared_responses import SharedResponses
from app.workers.worker_responses import WorkerResponses
from frameworks.errors import InvalidInput, OutOfMemory, Overloaded
from frameworks.replicas.control import ControlLink, Workers
from frameworks.tenants import DEFAULT_TENANT, Tenant
from frameworks.types import Answer, ClassifyAnswer, EmbedAnswer, PairRequest, ScoreAnswer, TensorBatch, TextRequest
from memory.result_cache import ENTRY_BYTES, ResultCache
from tests.app.inference.different_requests import DIFFERENT, tensor
from tests.app.workers.links import Links, linked
from tests.support.clocks import Clock
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task


@dataclass
class Model:
    """A model that answers on release. `num_runs`: number of calls."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Callable[[int], Answer] = lambda run: {"y": np.array([run])}
    num_runs: int = 0

    async def __call__(self) -> Answer:
        self.num_runs += 1
        run = self.num_runs
        await self.gate.wait()
        return self.answers(run)


class Worker:
    """A worker that finds responses, and its counts."""

    def __init__(self, link: ControlLink) -> None:
        self.link = link
        self.hits: Counter[tuple[str, str]] = Counter()
        self.misses: Counter[tuple[str, str]] = Counter()
        self.responses = WorkerResponses(link, self.hits, self.misses)
        self.joined = 0

    def send(
        self,
        model: Model,
        request: CacheableRequest,
        name: str = "m",
        serving: object = 1,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "asyncio.Task[Any]":
        def joined() -> None:
            self.joined += 1

        return task(self.responses.get_or_run(tenant, name, serving, request, model, joined))

    @property
    def counts(self) -> tuple[int, int]:
        """Return the hits and misses of m."""
        return self.hits["m", ""], self.misses["m", ""]


class Server:
    """A supervisor with a cache, and its workers."""

    def __init__(self, links: Links, cache: ResultCache[bytes], responses: SharedResponses) -> None:
        self.links = links
        self.cache = cache
        self.responses = responses

    async def connect(self, number: int) -> Worker:
        return Worker(await self.links.connect(number))

    async def asked(self, count: int) -> None:
        """Wait until so many callers run a request or wait."""
        await soon(lambda: len(self.responses._runs) == count)

    def check_idle(self) -> None:
        assert len(self.responses._runs) == 0


@asynccontextmanager
async def serving(
    num_workers: int = 2, max_bytes: int = 10**6, clock: Clock | None = None
) -> AsyncIterator[tuple[Server, list[Worker]]]:
    """Yield a server with workers; a `clock`: its responses expire after 10 s."""
    workers = Workers()
    cache: ResultCache[bytes] = (
        ResultCache(max_bytes, None) if clock is None else ResultCache(max_bytes, ttl_s=10.0, clock=clock)
    )
    responses = SharedResponses(cache, workers)
    async with linked(workers) as links:
        server = Server(links, cache, responses)
        yield server, [await server.connect(number) for number in range(num_workers)]


async def outcomes(*tasks: "asyncio.Task[Any]") -> list[Any]:
    """Return answers and errors. Raises TimeoutError if a request hangs."""
    return list(await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANGS_AFTER_S))


class TestRuns:
    @in_loop
    async def test_equal_requests_of_workers_run_once(self) -> None:
        async with serving(3) as (server, workers):
            model = Model()
            tasks = [worker.send(model, tensor(1, 2)) for worker in workers for _ in range(10)]
            await server.asked(3)
            assert (model.num_runs, [worker.joined for worker in workers]) == (1, [9, 9, 9])
            model.gate.set()
            assert [answer["y"].tolist() for answer in await outcomes(*tasks)] == [[1]] * 30
            assert sum(worker.hits["m", ""] for worker in workers) == 29
            assert sum(worker.misses["m", ""] for worker in workers) == 1
            for worker in workers:
                (answer,) = await outcomes(worker.send(model, tensor(1, 2)))
                assert answer["y"].tolist() == [1]
            assert (model.num_runs, len(server.cache)) == (1, 1)
            server.check_idle()

    @in_loop
    async def test_other_requests_run_independently(self) -> None:
        async with serving() as (server, (one, other)):
            slow, quick = Model(), Model()
            quick.gate.set()
            first = one.send(slow, tensor(1))
            await server.asked(1)
            assert (await outcomes(other.send(quick, tensor(2))))[0]["y"].tolist() == [1]
            assert not first.done()
            slow.gate.set()
            await outcomes(first)
            assert (one.counts, other.counts) == ((0, 1), (0, 1))

    @in_loop
    async def test_cancelled_run_passes_to_other_worker(self) -> None:
        async with serving(4) as (server, workers):
            model = Model()
            tasks = []
            for number, worker in enumerate(workers):
                tasks.append(worker.send(model, tensor(1)))
                await server.asked(number + 1)
            tasks[2].cancel()
            await server.asked(3)
            assert model.num_runs == 1, "a caller that waits is cancelled alone"
            tasks[0].cancel()
            await soon(lambda: model.num_runs == 2)
            model.gate.set()
            answers = await outcomes(*tasks)
            assert [type(answers[number]) for number in (0, 2)] == [asyncio.CancelledError] * 2
            assert [answers[number]["y"].tolist() for number in (1, 3)] == [[2], [2]]
            assert [worker.counts for worker in workers] == [(0, 1), (0, 1), (0, 0), (1, 0)]
            server.check_idle()

    @in_loop
    async def test_cancelled_caller_passes_run_within_worker(self) -> None:
        async with serving() as (server, (one, other)):
            model = Model()
            first = one.send(model, tensor(1))
            await server.asked(1)
            waiting = [other.send(model, tensor(1)) for _ in range(3)]
            await server.asked(2)
            waiting[0].cancel()
            await soon(waiting[0].done)
            await server.asked(2)
            model.gate.set()
            answers = await outcomes(first, *waiting[1:])
            assert ([answer["y"].tolist() for answer in answers], model.num_runs) == ([[1]] * 3, 1)

    @in_loop
    async def test_lost_worker_passes_its_run_on(self) -> None:
        async with serving(3) as (server, workers):
            lost, model = Model(), Model()
            first = workers[0].send(lost, tensor(1))
            await server.asked(1)
            tasks = [worker.send(model, tensor(1)) for worker in workers[1:]]
            await server.asked(3)
            await server.links.lose(workers[0].link)
            await soon(lambda: model.num_runs == 1)
            model.gate.set()
            assert [answer["y"].tolist() for answer in await outcomes(*tasks)] == [[1]] * 2
            assert (lost.num_runs, model.num_runs) == (1, 1)
            lost.gate.set()
            await outcomes(first)
            server.check_idle()

    @in_loop
    async def test_lost_supervisor_lets_requests_run(self) -> None:
        async with serving() as (server, (one, other)):
            slow, model = Model(), Model()
            first = one.send(slow, tensor(1))
            await server.asked(1)
            waiting = other.send(model, tensor(1))
            await server.asked(2)
            await server.links.lose(other.link)
            later = other.send(model, tensor(2))
            model.gate.set()
            slow.gate.set()
            assert [answer["y"].tolist() for answer in await outcomes(waiting, later, first)] == [[1], [2], [1]]
            assert other.counts == (0, 2)


class TestErrors:
    @in_loop
    @pytest.mark.parametrize("error", [InvalidInput("x", "wrong"), OutOfMemory("full"), Overloaded("full", 3.0)])
    async def test_error_reaches_all_workers_uncached(self, error: Exception) -> None:
        def fail(run: int) -> Answer:
            if run == 1:
                raise error
            return {"y": np.array([run])}

        async with serving(3) as (server, workers):
            model = Model(answers=fail)
            tasks = [worker.send(model, tensor(1)) for worker in workers for _ in range(2)]
            await server.asked(3)
            model.gate.set()
            errors = await outcomes(*tasks)
            assert {(type(each), str(each), repr(vars(each))) for each in errors} == {
                (type(error), str(error), repr(vars(error)))
            }
            assert (model.num_runs, len(server.cache)) == (1, 0)
            assert sum((Counter(worker.hits) for worker in workers), Counter()) == {}, "an error is no cache hit"
            assert (await outcomes(workers[0].send(model, tensor(1))))[0]["y"].tolist() == [2]
            server.check_idle()

    @in_loop
    async def test_bug_reaches_all_workers(self) -> None:
        def fail(run: int) -> Answer:
            raise KeyError("a bug")

        async with serving() as (server, workers):
            model = Model(answers=fail)
            tasks = [worker.send(model, tensor(1)) for worker in workers]
            await server.asked(2)
            model.gate.set()
            assert {str(each) for each in await outcomes(*tasks)} == {"'a bug'", "KeyError: 'a bug'"}

    @in_loop
    async def test_quota_of_one_sender_stays_there(self) -> None:
        def fail(run: int) -> Answer:
            if run == 1:
                raise QuotaExceeded("tokens: expected fewer", 3.0)
            return {"y": np.array([run])}

        async with serving() as (server, (one, other)):
            model = Model(answers=fail)
            first = one.send(model, tensor(1))
            await server.asked(1)
            second = other.send(model, tensor(1))
            await server.asked(2)
            model.gate.set()
            refused, answer = await outcomes(first, second)
            assert isinstance(refused, QuotaExceeded)
            assert answer["y"].tolist() == [2]


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


class TestBounds:
    @in_loop
    async def test_bytes_and_evictions_are_counted(self) -> None:
        async with serving(max_bytes=3 * (ENTRY_BYTES + 150)) as (server, (one, other)):
            model = Model()
            model.gate.set()
            for i in range(5):
                await outcomes((one if i % 2 else other).send(model, tensor(i)))
            await soon(lambda: server.responses.evictions == 2)
            assert ENTRY_BYTES * 3 < server.responses.size_bytes < 3 * (ENTRY_BYTES + 150)

    @in_loop
    async def test_responses_expire_and_are_dropped(self) -> None:
        clock = Clock()
        async with serving(clock=clock) as (server, (one, other)):
            model = Model()
            model.gate.set()

            async def send(worker: Worker) -> int:
                (answer,) = await outcomes(worker.send(model, tensor(1)))
                await soon(lambda: len(server.responses._runs) == 0)
                return int(answer["y"][0])

            assert [await send(one), await send(other)] == [1, 1]
            clock.now_s += 10
            assert [await send(one), await send(other)] == [2, 2]
            server.responses.drop("n")
            assert await send(other) == 2
            server.responses.drop("m")
            assert await send(other) == 3


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "send", "cancel", "open", "lose", "turn"]), st.integers(0, 5)),
    max_size=40,
)


@given(STEPS)
def test_any_order_answers_every_request(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_answer_all(steps))


async def _answer_all(steps: list[tuple[str, int]]) -> None:
    """Send, cancel, run and lose workers in any order: each request gets an answer of its own model."""
    async with serving(3) as (server, workers):
        models = [Model(answers=partial(_answer, i)) for i in range(2)]
        sent: list[tuple[int, asyncio.Task[Any]]] = []
        for step, number in steps:
            if step == "send":
                worker = workers[number % 3]
                sent.append((number % 2, worker.send(models[number % 2], tensor(number % 2))))
            elif step == "cancel" and sent:
                sent[number % len(sent)][1].cancel()
            elif step == "open":
                models[number % 2].gate.set()
            elif step == "lose" and number < 3:
                await server.links.lose(workers[number].link)
                workers[number] = await server.connect(number)
            else:
                await asyncio.sleep(0)
        for model in models:
            model.gate.set()
        answers = await outcomes(*(each for _, each in sent))
        for (i, _), answer in zip(sent, answers, strict=True):
            assert isinstance(answer, asyncio.CancelledError) or answer["y"].tolist() == [i]
        await server.asked(0)


def _answer(i: int, run: int) -> Answer:
    return {"y": np.array([i])}


def _plain(answer: Any) -> Any:
    """Return the content of an answer, which numpy compares."""
    if isinstance(answer, EmbedAnswer):
        return [answer.embeddings, answer.tokens]
    return answer if isinstance(answer, dict) else [getattr(answer, name) for name in answer.__slots__]
