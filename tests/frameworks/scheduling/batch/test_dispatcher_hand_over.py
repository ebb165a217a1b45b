"""When a batch is handed over, to which instance, and what its callers hear of it."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from frameworks.errors import ModelFailed
from frameworks.scheduling.batch.request import Outputs
from frameworks.types import Timings, TokenBatch
from tests.frameworks.scheduling.batch.dispatching import (
    House,
    RowModel,
    answers_of,
    arrival,
    errors_of,
    house_of,
    rows,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task, worker_threads_end


class TestBeginning:
    @in_loop
    async def test_a_request_begins_when_it_is_handed_over_and_not_while_it_waits(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        begun: list[int] = []

        def ask(house: House, x: int) -> "asyncio.Task[object]":
            return task(house.run(rows(x), begin=lambda: begun.append(x)))

        async with house_of(model) as house:
            first = ask(house, 0)
            await arrival(gate)
            assert begun == [0]
            others = [ask(house, i) for i in (1, 2)]
            await soon(lambda: house.dispatcher.queue_depth == 2)
            assert begun == [0]
            others[0].cancel()
            await asyncio.wait([others[0]])
            gate.open()
            await asyncio.gather(first, others[1])
        assert begun == [0, 2]

    @in_loop
    async def test_a_request_in_parts_begins_with_the_first_of_them(self) -> None:
        gates = [Gate(), Gate(), Gate()]
        calls = iter(gates)
        begun: list[bool] = []
        async with house_of(RowModel(lambda _: next(calls)()), max_rows=2) as house:
            asked = task(house.run(rows(*range(6)), begin=lambda: begun.append(True)))
            await arrival(gates[0])
            assert begun
            for gate in gates:
                gate.open()
            await asked


class TestDeadlines:
    @in_loop
    @pytest.mark.parametrize("max_rows", [1, 8], ids=["in the batch that is next", "in the line"])
    async def test_what_is_late_is_never_executed(self, max_rows: int) -> None:
        gate = Gate()
        model = RowModel(gate)

        async def in_time(house: House, *x: int) -> list[int]:
            async with asyncio.timeout(0.01):
                answer: list[int] = await house.ask(*x)
            return answer

        async with house_of(model, max_rows=max_rows) as house:
            first = house.ask(0)
            await arrival(gate)
            late = [task(in_time(house, 10 * i, 10 * i + 1, 10 * i + 2)) for i in range(1, 4)]
            patient = house.ask(1)
            assert await errors_of(*late) == [TimeoutError] * 3
            gate.open()
            assert await answers_of(first, patient) == [[0], [1]]
        assert model.executed == [[0], [1]]

    @in_loop
    async def test_what_is_late_before_its_company_has_come_is_never_executed(self) -> None:
        model = RowModel()
        async with house_of(model, max_delay_s=0.05) as house:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await house.run(rows(1))
            assert await house.ask(2) == [2]
        assert model.executed == [[2]]


class TestDelay:
    @in_loop
    async def test_a_batch_waits_for_company_and_not_longer(self) -> None:
        model = RowModel()
        async with house_of(model, max_delay_s=0.08) as house:
            timings = [Timings(), Timings()]
            first = task(house.run(rows(0), timings=timings[0]))
            await asyncio.sleep(0.02)
            second = task(house.run(rows(1), timings=timings[1]))
            assert model.executed == []
            await asyncio.gather(first, second)
            assert model.executed == [[0, 1]]
            # The delay counts from the first request.
            assert timings[0].queue_s >= 0.08
            assert timings[1].queue_s <= timings[0].queue_s - 0.02
        assert house.batch_sizes == {2: 1}

    @in_loop
    async def test_company_that_keeps_coming_does_not_put_it_off(self) -> None:
        model = RowModel()
        async with house_of(model, max_rows=10_000, max_delay_s=0.05) as house:
            asked: list[asyncio.Task[Outputs]] = []
            timings: list[Timings] = []
            until_s = time.perf_counter() + 0.3
            while time.perf_counter() < until_s:
                timings.append(Timings())
                asked.append(task(house.run(rows(len(asked)), timings=timings[-1])))
                await asyncio.sleep(0.005)
            await asyncio.gather(*asked)
        assert len(model.executed) >= 3
        assert max(each.queue_s for each in timings) < 0.25
        assert timings[0].queue_s >= 0.05

    @in_loop
    async def test_a_full_batch_goes_at_once(self) -> None:
        model = RowModel()
        async with house_of(model, max_rows=3, max_delay_s=60) as house:
            assert await answers_of(house.ask(0), house.ask(1, 2)) == [[0], [1, 2]]
            assert await answers_of(*(house.ask(i) for i in range(6))) == [[i] for i in range(6)]
        assert [len(batch) for batch in model.executed] == [3, 3, 3]

    @in_loop
    async def test_who_leaves_while_it_waits_is_not_waited_for(self) -> None:
        model = RowModel()
        async with house_of(model, max_delay_s=0.05) as house:
            one, gone = house.ask(0), house.ask(1)
            await soon(lambda: house.dispatcher.queue_depth == 2)
            gone.cancel()
            assert await answers_of(one) == [[0]]
        assert model.executed == [[0]]


class TestInstances:
    @in_loop
    async def test_each_batch_goes_to_the_instance_that_has_least_to_do(self) -> None:
        gates = [Gate(), Gate()]
        models = [RowModel(gate) for gate in gates]
        async with house_of(*models, max_rows=1) as house:
            stuck = house.ask(0)
            await arrival(gates[0])
            busy = house.ask(1)
            await arrival(gates[1])
            gates[1].open()
            assert await busy == [1]
            for i in range(2, 20):
                assert await asyncio.wait_for(house.ask(i), 60) == [i]
            assert not stuck.done()
            gates[0].open()
            assert await stuck == [0]
        assert [len(model.executed) for model in models] == [1, 19]
        assert [set(model.threads) for model in models] == [{"worker-m0"}, {"worker-m1"}]

    @in_loop
    async def test_they_run_at_the_same_time(self) -> None:
        gate = Gate()
        models = [RowModel(gate) for _ in range(4)]
        async with house_of(*models, max_rows=1) as house:
            asked = [house.ask(i) for i in range(4)]
            await soon(lambda: all(model.executed for model in models))
            gate.open()
            assert await answers_of(*asked) == [[i] for i in range(4)]
        assert [len(model.executed) for model in models] == [1] * 4

    @in_loop
    async def test_the_rows_of_one_request_are_shared_out_and_joined_in_order(self) -> None:
        gate = Gate()
        models = [RowModel(gate) for _ in range(3)]
        async with house_of(*models, max_rows=4) as house:
            asked = house.ask(*range(50))
            await soon(lambda: all(model.executed for model in models))
            gate.open()
            assert await asked == list(range(50))

    @pytest.mark.parametrize("max_rows", [1, 8])
    def test_one_that_dies_takes_only_what_it_was_given(self, max_rows: int) -> None:
        gate, other_gate = Gate(), Gate()

        def die(_: list[int]) -> None:
            gate()
            raise SystemExit

        async def run() -> None:
            dying, living = RowModel(die), RowModel(other_gate)
            async with house_of(dying, living, max_rows=max_rows) as house:
                first = house.ask(0)
                await arrival(gate)
                second = house.ask(1)
                await arrival(other_gate)
                waiting = [house.ask(i, i + 1, i + 2) for i in range(10, 70, 10)]
                await soon(lambda: house.dispatcher.queue_depth > 0)
                gate.open()
                assert await errors_of(first) == [ModelFailed]
                await soon(lambda: house.workers[0].is_dead)
                assert not house.dispatcher.is_dead
                other_gate.open()
                assert await answers_of(second) == [[1]]
                outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
                for i, outcome in zip(range(10, 70, 10), outcomes, strict=True):
                    assert isinstance(outcome, ModelFailed) or outcome == [i, i + 1, i + 2]
                # Of those who waited only the batch that the dead one held in advance has failed.
                assert sum(isinstance(outcome, ModelFailed) for outcome in outcomes) <= (1 if max_rows == 1 else 3)
                assert await answers_of(*(house.ask(i) for i in range(5))) == [[i] for i in range(5)]
            assert dying.executed == [[0]]

        with capture_logs():
            asyncio.run(run())
        assert worker_threads_end()

    @in_loop
    async def test_texts_of_all_lengths_find_their_way_through_two(self) -> None:
        models = [RowModel(), RowModel()]
        async with house_of(*models) as house:
            asked = [task(house.run(TokenBatch([[i] * (1 + i * 7 % 60)]))) for i in range(200)]
            for i, result in enumerate(await asyncio.gather(*asked)):
                assert result["text"].tolist() == [[i, 1 + i * 7 % 60]]
        assert sum(len(batch) for model in models for batch in model.executed) == 200
