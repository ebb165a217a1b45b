"""Batches on real workers: each caller gets its own rows, whoever leaves, fails, dies or is in a hurry beside it."""

import asyncio

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.errors import Draining, InvalidInput, ModelFailed
from frameworks.types import Batch, TensorBatch, Value
from tests.frameworks.scheduling.batch.dispatching import (
    BAD,
    RowModel,
    answers_of,
    arrival,
    errors_of,
    first_of,
    house_of,
    rows,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, worker_threads_end


class TestBatches:
    @in_loop
    async def test_requests_of_one_round_of_the_loop_share_a_batch(self) -> None:
        model = RowModel()
        async with house_of(model) as house:
            asked = [house.ask(0), house.ask(1), house.ask(2, 3), house.ask(4)]
            assert await answers_of(*asked) == [[0], [1], [2, 3], [4]]
        assert [sorted(batch) for batch in model.executed] == [[0, 1, 2, 3, 4]]
        assert house.batch_sizes == {5: 1}

    @in_loop
    async def test_what_comes_while_the_lane_is_busy_forms_the_next_batch(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with house_of(model) as house:
            first = house.ask(0)
            await arrival(gate)
            others = []
            for i in range(1, 7):
                others.append(house.ask(i))
                await asyncio.sleep(0)
            await soon(lambda: house.dispatcher.queue_depth == 6)
            gate.open()
            assert await answers_of(first, *others) == [[i] for i in range(7)]
        assert model.executed == [[0], [1, 2, 3, 4, 5, 6]]
        assert house.batch_sizes == {1: 1, 6: 1}
        seconds = house.dispatcher._counts.seconds
        assert seconds.keys() == {1, 6}
        assert 0 < seconds[6] < seconds[1], "the first one waited for the gate"

    @in_loop
    async def test_other_shapes_never_share_a_batch(self) -> None:
        model = RowModel()
        async with house_of(model) as house:
            answers = await answers_of(house.ask(9), *(house.ask(i, width=1 + i % 2) for i in range(6)))
        assert answers == [[9], *([i] for i in range(6))]
        assert sorted(map(sorted, model.executed)) == [[0, 2, 4, 9], [1, 3, 5]]

    @in_loop
    async def test_a_large_request_is_cut_and_joined_in_order(self) -> None:
        model = RowModel()
        async with house_of(model) as house:
            assert await house.ask(*range(100)) == list(range(100))
        assert max(map(len, model.executed)) == 8
        assert sum(size * count for size, count in house.batch_sizes.items()) == 100

    @in_loop
    async def test_a_request_of_no_rows_is_answered(self) -> None:
        async with house_of(RowModel()) as house:
            assert await answers_of(house.ask(), house.ask(1)) == [[], [1]]

    @in_loop
    async def test_tensors_that_must_not_be_batched_run_alone_and_whole(self) -> None:
        model = RowModel()
        async with house_of(model, inputs=()) as house:
            answers = await answers_of(house.ask(*range(20)), house.ask(20), house.ask(21))
        assert answers == [list(range(20)), [20], [21]]
        assert sorted(model.executed) == [list(range(20)), [20], [21]]

    @in_loop
    async def test_a_request_whose_inputs_have_unlike_rows_runs_alone(self) -> None:
        """Of a [2] and b [1] beside a [1] and b [2] a batch of three rows would run, and mix them up."""

        class Adding(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                assert isinstance(batch, TensorBatch)
                return {"sum": np.add(*(np.asarray(value) for value in batch.inputs.values()))}

        one = TensorBatch({"x": np.array([1, 2]), "b": np.array([10])})
        other = TensorBatch({"x": np.array([3]), "b": np.array([20, 30])})
        async with house_of(Adding(), inputs=("x", "b")) as house:
            results = await asyncio.gather(*(house.run(batch) for batch in (one, one, other)))
        assert [np.asarray(result["sum"]).tolist() for result in results] == [[11, 12], [11, 12], [23, 33]]

    @in_loop
    async def test_where_outputs_turn_out_not_to_follow_the_rows_each_runs_again_alone(self) -> None:
        class Even(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                return {"even": np.array([x for x in first_of(batch) if x % 2 == 0])}

        async with house_of(Even()) as house:
            results = await asyncio.gather(*(house.run(rows(*x)) for x in ((8,), (1, 2), (3,), (4, 6))))
        assert [np.asarray(result["even"]).tolist() for result in results] == [[8], [2], [], [4, 6]]

    @in_loop
    async def test_parts_that_cannot_be_joined_are_an_error_not_a_silence(self) -> None:
        class Ragged(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                return {"y": np.zeros((batch.rows, len(self.executed)))}

        async with house_of(Ragged(), max_rows=4) as house:
            with pytest.raises(InvalidInput, match='rows of output "y" differ in shape'):
                await asyncio.wait_for(house.run(rows(*range(8))), 60)

    @in_loop
    async def test_two_lanes_share_the_work(self) -> None:
        gate = Gate()
        models = [RowModel(gate), RowModel(gate)]
        async with house_of(*models, max_rows=1) as house:
            asked = [house.ask(i) for i in range(8)]
            await soon(lambda: all(model.executed for model in models))
            gate.open()
            assert await answers_of(*asked) == [[i] for i in range(8)]
        assert all(len(model.executed) >= 2 for model in models)


class TestThoseWhoLeave:
    @in_loop
    @pytest.mark.parametrize("max_rows", [3, 8], ids=["in the batch that is next", "in the line"])
    async def test_one_of_three_leaves_and_the_others_are_answered(self, max_rows: int) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with house_of(model, max_rows=max_rows) as house:
            first = house.ask(0)
            await arrival(gate)
            one, gone, other = house.ask(1), house.ask(2), house.ask(3)
            await soon(lambda: house.dispatcher.queue_depth == (3 if max_rows > 3 else 0))
            gone.cancel()
            await asyncio.wait([gone])
            gate.open()
            assert await answers_of(first, one, other) == [[0], [1], [3]]
        assert gone.cancelled()
        assert [sorted(batch) for batch in model.executed] == [[0], [1, 3]]
        assert house.batch_sizes == {1: 1, 2: 1}

    @in_loop
    async def test_one_of_three_leaves_while_their_batch_runs(self) -> None:
        gate = Gate()
        async with house_of(RowModel(gate)) as house:
            one, gone, other = house.ask(1), house.ask(2), house.ask(3)
            await arrival(gate)
            gone.cancel()
            await asyncio.wait([gone])
            gate.open()
            assert await answers_of(one, other) == [[1], [3]]

    @in_loop
    async def test_what_all_have_left_is_never_executed(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with house_of(model, max_rows=2) as house:
            first = house.ask(0)
            await arrival(gate)
            gone = [house.ask(*range(10 * i, 10 * i + 5)) for i in range(1, 5)]
            await soon(lambda: house.dispatcher.queue_depth > 0)
            for each in gone:
                each.cancel()
            await asyncio.wait(gone)
            assert house.dispatcher.queue_depth == 0
            gate.open()
            assert await first == [0]
            assert await house.ask(9) == [9]
        assert model.executed == [[0], [9]]

    @in_loop
    async def test_a_caller_that_leaves_before_the_round_ends_is_never_executed(self) -> None:
        model = RowModel()
        async with house_of(model) as house:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await house.run(rows(1))
            assert await house.ask(2) == [2]
        assert model.executed == [[2]]


class TestThoseWhoFail:
    @in_loop
    async def test_a_bad_row_fails_its_own_caller_only(self) -> None:
        model = RowModel()
        async with house_of(model) as house:
            asked = [house.ask(1), house.ask(BAD), house.ask(2, 3)]
            assert await errors_of(*asked) == [None, InvalidInput, None]
        assert sorted(map(sorted, model.executed)) == sorted([sorted([1, BAD, 2, 3]), [1], [BAD], [2, 3]])

    @in_loop
    async def test_a_bad_row_of_a_request_in_parts_fails_it_once_and_its_rest_is_dropped(self) -> None:
        model = RowModel()
        async with house_of(model, max_rows=2) as house:
            bad, good = house.ask(BAD, *range(100, 200), BAD), house.ask(4)
            assert await errors_of(bad, good) == [InvalidInput, None]
            await soon(lambda: house.dispatcher.queue_depth == 0)
        assert model.answered_rows < 100

    @in_loop
    async def test_another_error_fails_the_whole_batch_and_not_the_next(self) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise ModelFailed("the device failed")

        model = RowModel(behaviour)
        async with house_of(model) as house:
            assert await errors_of(house.ask(1), house.ask(13)) == [ModelFailed, ModelFailed]
            assert await house.ask(2) == [2]
        assert [sorted(batch) for batch in model.executed] == [[1, 13], [2]]

    @pytest.mark.parametrize("max_rows", [1, 2, 8])
    def test_a_lane_that_dies_fails_all_who_wait_and_all_who_come(self, max_rows: int) -> None:
        gate = Gate()

        def behaviour(_: list[int]) -> None:
            gate()
            raise SystemExit

        async def run() -> None:
            async with house_of(RowModel(behaviour), max_rows=max_rows) as house:
                first = house.ask(0)
                await arrival(gate)
                waiting = [house.ask(i, i + 10, i + 20) for i in range(6)]
                await soon(lambda: house.dispatcher.queue_depth > 0)
                gate.open()
                assert await errors_of(first, *waiting) == [ModelFailed] * 7
                assert await errors_of(house.ask(1), house.ask(2)) == [ModelFailed] * 2

        with capture_logs() as logs:
            asyncio.run(run())
        assert worker_threads_end()
        assert [entry["event"] for entry in logs] == ["device thread ended"]

    def test_the_other_lane_goes_on_where_one_has_died(self) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise SystemExit

        async def run() -> None:
            async with house_of(RowModel(behaviour), RowModel(behaviour), max_rows=1) as house:
                assert await errors_of(house.ask(13)) == [ModelFailed]
                await soon(lambda: any(worker.is_dead for worker in house.workers))
                assert await answers_of(*(house.ask(i) for i in range(5))) == [[i] for i in range(5)]

        with capture_logs():
            asyncio.run(run())
        assert worker_threads_end()

    @in_loop
    async def test_giving_up_fails_the_waiters_at_once(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with house_of(model, max_rows=2) as house:
            first = house.ask(0)
            await arrival(gate)
            waiting = [house.ask(i, i + 10, i + 20) for i in range(5)]
            await soon(lambda: house.dispatcher.queue_depth > 0)
            house.dispatcher.abort("too late")
            assert await errors_of(first, *waiting) == [Draining] * 6
            gate.open()
        assert model.executed == [[0]]
