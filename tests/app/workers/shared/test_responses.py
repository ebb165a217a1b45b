"""Equal requests of several workers run once, over real sockets: in time, cancelled, failed, and with losses."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.errors import QuotaExceeded
from frameworks.core.errors import InvalidInput, OutOfMemory, Overloaded
from frameworks.types import Answer
from memory.result_cache import ENTRY_BYTES
from tests.app.inference.different_requests import Model, outcomes, tensor
from tests.app.workers.sharing_responses import Worker, serving
from tests.support.clocks import Clock
from tests.support.loops import in_loop, soon


class TestRuns:
    @in_loop
    async def test_equal_requests_of_workers_run_once(self) -> None:
        async with serving(3) as (server, workers):
            model = Model()
            tasks = [worker.send(model, tensor(1, 2)) for worker in workers for _ in range(10)]
            await server.asked(3)
            await soon(lambda: model.num_runs == 1)
            assert [worker.joined for worker in workers] == [9, 9, 9]
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
