"""Runs on the loop itself: only what is known to be quick, together with what came beside it, and never for good."""

import asyncio
import time

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.errors import Draining, InvalidInput, ModelFailed, OutOfMemory
from frameworks.scheduling.batch.inline import LIGHT_S, InlinePolicy
from frameworks.types import Batch, Value
from tests.frameworks.scheduling.batch.dispatching import (
    BAD,
    HUGE,
    House,
    RowModel,
    answers_of,
    arrival,
    errors_of,
    first_of,
    house_of,
    rows,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task

LOOP = "MainThread"
LANE = "worker-m0"


def compute(seconds: float) -> None:
    """Takes so much of the thread's CPU time."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


class TestWhatIsKnown:
    def test_nothing_is_light_before_it_ran(self) -> None:
        runs = InlinePolicy()
        assert runs.most_rows("s") == 0
        runs.learn("s", 1, LIGHT_S / 10)
        assert (runs.most_rows("s"), runs.most_rows("other")) == (10, 0)

    def test_the_fastest_run_by_rows_counts(self) -> None:
        runs = InlinePolicy()
        for count, seconds, most in ((1, 1.0, 0), (4, LIGHT_S / 2, 8), (1, LIGHT_S / 2, 8), (8, LIGHT_S / 2, 16)):
            runs.learn("s", count, seconds)
            assert runs.most_rows("s") == most

    def test_a_single_run_that_was_light_allows_one_row(self) -> None:
        """Eight rows took longer than a light run may, so one of them is held for light and two perhaps not."""
        runs = InlinePolicy()
        runs.learn("s", 8, LIGHT_S * 5)
        assert runs.most_rows("s") == 1
        runs = InlinePolicy()
        runs.learn("s", 1, LIGHT_S * 1.01)
        assert runs.most_rows("s") == 0

    def test_three_slow_runs_one_after_the_other_are_the_end_of_it(self) -> None:
        runs = InlinePolicy()
        runs.learn("s", 1, 1e-6)
        for seconds in (1.0, 1.0, 1e-6, 1.0, 1.0):
            runs.check("s", seconds)
            assert runs.most_rows("s") > 0
        runs.check("s", 1.0)
        assert runs.most_rows("s") == 0
        runs.learn("s", 1, 1e-6)
        assert runs.most_rows("s") == 0, "for good"

    def test_shapes_that_callers_make_up_do_not_pile_up(self) -> None:
        runs = InlinePolicy()
        for shape in range(10_000):
            runs.learn(shape, 1, 1e-6)
            assert runs.most_rows(shape) > 0
        assert len(runs._fastest) <= 256


class TestTheWayToTheLoop:
    @in_loop
    async def test_a_quick_model_moves_to_the_loop_after_it_was_seen_to_be_quick(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            for i in range(500):
                assert await house.ask(i) == [i]
                if model.threads[-1] == LOOP:
                    break
            assert await house.ask(7) == [7]
            assert await house.ask(8, width=2) == [8]
        assert model.threads[0] == LANE
        assert model.threads[-3:] == [LOOP, LOOP, LANE], "another shape is not known yet"

    @in_loop
    async def test_a_slow_model_never_does(self) -> None:
        model = RowModel(lambda _: compute(2 * LIGHT_S))
        async with house_of(model, runs_by_shape=True) as house:
            for i in range(20):
                assert await house.ask(i) == [i]
        assert set(model.threads) == {LANE}

    @in_loop
    @pytest.mark.parametrize(
        ("runs_by_shape", "max_delay_s"), [(False, 0.0), (True, 0.0001)], ids=["values matter", "it is to wait"]
    )
    async def test_nor_does_one_that_may_not(self, runs_by_shape: bool, max_delay_s: float) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=runs_by_shape, max_delay_s=max_delay_s) as house:
            for i in range(50):
                assert await house.ask(i) == [i]
        assert set(model.threads) == {LANE}

    @in_loop
    async def test_more_rows_than_are_light_go_to_the_thread(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True, max_rows=4) as house:
            house.make_light(most_rows=3)
            assert await house.ask(*range(4)) == list(range(4))
            assert model.threads == [LANE]
        model = RowModel()
        async with house_of(model, runs_by_shape=True, max_rows=4) as house:
            house.make_light(most_rows=3)
            assert await house.ask(*range(3)) == list(range(3))
            assert model.threads == [LOOP]
            house.make_light()
            assert await house.ask(*range(5)) == list(range(5))
            assert model.threads == [LOOP, LANE, LANE], "nor is it let past max_batch_size"

    @in_loop
    async def test_behind_a_busy_lane_it_waits_in_the_line(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x == [0] else None)
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            first = house.ask(0, width=2)
            await arrival(gate)
            others = [house.ask(i) for i in (1, 2)]
            await soon(lambda: house.dispatcher.queue_depth == 2)
            assert model.executed == [[0]]
            gate.open()
            assert await answers_of(first, *others) == [[0], [1], [2]]
            assert await house.ask(3) == [3]
        assert (model.executed, model.threads) == ([[0], [1, 2], [3]], [LANE, LANE, LOOP])

    @in_loop
    async def test_it_does_not_overtake_who_waits_for_the_worker(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            asked = [house.ask(1, priority=9), house.ask(2, priority=1, width=2)]
            assert await answers_of(*asked) == [[1], [2]]
        assert (model.executed, model.threads) == ([[2], [1]], [LANE, LANE])

    @in_loop
    async def test_an_instance_that_is_idle_serves_beside_one_that_is_busy(self) -> None:
        gate = Gate()
        models = [RowModel(gate), RowModel()]
        async with house_of(*models, runs_by_shape=True) as house:
            house.make_light()
            first = house.ask(0, width=2)
            await arrival(gate)
            assert await asyncio.wait_for(house.ask(1), 60) == [1]
            gate.open()
            assert await first == [0]
        assert [model.threads for model in models] == [[LANE], [LOOP]]

    @in_loop
    async def test_a_shape_that_turns_out_slow_three_times_goes_to_the_thread_for_good(self) -> None:
        model = RowModel(lambda x: compute(0.004) if x[0] < 3 else None)
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            for i in range(30):
                assert await house.ask(i) == [i]
        assert model.threads == [LOOP] * 3 + [LANE] * 27


class TestTogether:
    @in_loop
    async def test_what_comes_in_one_round_of_the_loop_is_one_batch(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            begun: list[int] = []
            asked = [house.ask(0), house.ask(1, 2), house.ask(3)]
            last = task(house.run(rows(4), begin=lambda: begun.append(4)))
            assert await answers_of(*asked) == [[0], [1, 2], [3]]
            assert np.asarray((await last)["y"]).tolist() == [[8]]
        assert (model.executed, model.threads) == ([[0, 1, 2, 3, 4]], [LOOP])
        assert house.batch_sizes == {5: 1}
        assert begun == [4]

    @in_loop
    async def test_shapes_that_differ_run_one_after_the_other(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            for width in (1, 2):
                house.make_light(width=width)
            assert await answers_of(*(house.ask(i, width=1 + i % 2) for i in range(6))) == [[i] for i in range(6)]
        assert (model.executed, set(model.threads)) == ([[0, 2, 4], [1, 3, 5]], {LOOP})

    @in_loop
    async def test_what_must_not_share_runs_alone(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True, inputs=()) as house:
            house.make_light()
            assert await answers_of(*(house.ask(i) for i in range(3))) == [[0], [1], [2]]
        assert (model.executed, set(model.threads)) == ([[0], [1], [2]], {LOOP})

    @in_loop
    async def test_past_max_rows_the_urgent_go_first(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True, max_rows=2) as house:
            house.make_light()
            asked = [house.ask(i, priority=priority) for i, priority in enumerate((9, 5, 1, 5, 1))]
            assert await answers_of(*asked) == [[i] for i in range(5)]
        assert (model.executed, set(model.threads)) == ([[2, 4], [1, 3], [0]], {LOOP})

    @in_loop
    async def test_a_caller_that_left_is_skipped(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            one, gone, other = (house.ask(i) for i in range(3))
            await asyncio.sleep(0)
            gone.cancel()
            assert await answers_of(one, other) == [[0], [2]]
            assert gone.cancelled()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await house.run(rows(3))
        assert model.executed == [[0, 2]]

    @in_loop
    async def test_between_many_long_ones_the_loop_gets_its_turn(self) -> None:
        turns: list[str] = []

        def behaviour(_: list[int]) -> None:
            time.sleep(0.0025)
            turns.append("run")

        model = RowModel(behaviour)
        async with house_of(model, runs_by_shape=True, max_rows=1) as house:
            house.make_light()
            asked = [house.ask(i) for i in range(3)]
            while not all(each.done() for each in asked):
                turns.append("turn")
                await asyncio.sleep(0)
            assert await answers_of(*asked) == [[0], [1], [2]]
        assert "run run" not in " ".join(turns)
        assert model.executed == [[0], [1], [2]]


async def at_once(house: House, *x: int) -> list[bool]:
    """Asks for all of them in one round of the loop: which of them are answered before its next."""
    asked = [house.ask(each) for each in x]
    await asyncio.sleep(0)
    done = [each.done() for each in asked]
    assert await answers_of(*asked) == [[each] for each in x]
    await asyncio.sleep(0)
    return done


class TestOneAlone:
    @in_loop
    async def test_one_who_comes_alone_is_answered_at_once(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await at_once(house, 0) == [False], "nobody knows yet that it comes alone"
            for i in (1, 2, 3):
                assert await at_once(house, i) == [True]
        assert (model.executed, set(model.threads)) == ([[0], [1], [2], [3]], {LOOP})
        assert house.batch_sizes == {1: 4}

    @in_loop
    @pytest.mark.parametrize("others", [1, 2, 5])
    async def test_others_in_the_same_round_bring_the_rounds_back(self, others: int) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await at_once(house, 0) == [False]
            assert await at_once(house, *range(1, 2 + others)) == [True, *[False] * others]
            assert await at_once(house, *range(10, 11 + others)) == [False] * (1 + others)
            assert await at_once(house, 20) == [False]
            assert await at_once(house, 21) == [True], "until one comes alone again"
        together = [list(range(2, 2 + others)), list(range(10, 11 + others))]
        assert model.executed == [[0], [1], *together, [20], [21]]

    @in_loop
    async def test_behind_a_busy_lane_nobody_is_answered_at_once(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x == [9] else None)
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await at_once(house, 0) == [False]
            busy = house.ask(9, width=2)
            await arrival(gate)
            waiting = house.ask(1)
            await soon(lambda: house.dispatcher.queue_depth == 1)
            gate.open()
            assert await answers_of(busy, waiting) == [[9], [1]]
        assert model.executed == [[0], [9], [1]]


class TestThoseWhoFail:
    @in_loop
    async def test_a_bad_row_fails_its_own_caller_only(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await errors_of(house.ask(1), house.ask(BAD), house.ask(2, 3)) == [None, InvalidInput, None]
        assert (model.executed, set(model.threads)) == ([[1, BAD, 2, 3], [1], [BAD], [2, 3]], {LOOP})
        assert house.batch_sizes.total() == 2, "what was refused is no batch that ran"

    @in_loop
    async def test_what_does_not_fit_together_goes_through_the_line_in_halves(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await answers_of(house.ask(1), house.ask(HUGE), house.ask(2, 3)) == [[1], [HUGE], [2, 3]]
            assert (house.batches_split, house.dispatcher._ceiling.size) == ({4: 1}, 2)
            assert model.executed[0] == [1, HUGE, 2, 3]
            assert (model.threads[0], set(model.threads[1:])) == (LOOP, {LANE})
            # The ceiling holds on the loop too.
            assert await answers_of(*(house.ask(i) for i in range(4, 8))) == [[4], [5], [6], [7]]
        assert (model.executed[-2:], model.threads[-2:]) == ([[4, 5], [6, 7]], [LOOP] * 2)
        assert house.batch_sizes == {1: 2, 2: 3}

    @in_loop
    async def test_rows_of_one_request_that_do_not_fit_together_do_so_too(self) -> None:
        model = RowModel(limit=lambda: 2)
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await house.ask(*range(8)) == list(range(8))
            assert await house.ask(9, 10) == [9, 10]
            for i in range(40):
                await house.ask(i)
        first = [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1], [2, 3], [4, 5], [6, 7], [9, 10]]
        assert model.executed[:8] == first
        assert model.threads[:8] == [LOOP, *[LANE] * 6, LOOP]
        assert house.dispatcher._ceiling.size == 3, "of runs on the loop it learns that there is room again"

    @in_loop
    @pytest.mark.parametrize("error", [OutOfMemory("too much"), MemoryError()])
    async def test_a_single_row_that_does_not_fit_is_told(self, error: Exception) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise error

        async with house_of(RowModel(behaviour), runs_by_shape=True) as house:
            house.make_light()
            assert await errors_of(house.ask(13)) == [OutOfMemory]
            assert await house.ask(2) == [2]
            assert house.dispatcher._ceiling.size is None
        assert not house.batches_split

    @in_loop
    @pytest.mark.parametrize(
        ("error", "came"), [(ModelFailed("the device failed"), ModelFailed), (StopIteration(), RuntimeError)]
    )
    async def test_another_error_fails_the_whole_batch_and_not_the_next(
        self, error: Exception, came: type[Exception]
    ) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise error

        model = RowModel(behaviour)
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await errors_of(house.ask(1), house.ask(13)) == [came, came]
            assert await house.ask(2) == [2]
        assert (model.executed, set(model.threads)) == ([[1, 13], [2]], {LOOP})

    @in_loop
    @pytest.mark.parametrize("death", [SystemExit, asyncio.CancelledError])
    async def test_what_would_end_a_thread_does_not_end_the_loop(self, death: type[BaseException]) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise death

        async with house_of(RowModel(behaviour), runs_by_shape=True) as house:
            house.make_light()
            assert await errors_of(house.ask(1), house.ask(13)) == [ModelFailed] * 2
            assert await house.ask(2) == [2]

    @in_loop
    async def test_where_outputs_turn_out_not_to_follow_the_rows_each_runs_alone(self) -> None:
        class Even(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                return {"even": np.array([x for x in first_of(batch) if x % 2 == 0])}

        model = Even()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            results = await asyncio.gather(*(house.run(rows(*x)) for x in ((8,), (1, 2), (3,), (4, 6))))
        assert [np.asarray(result["even"]).tolist() for result in results] == [[8], [2], [], [4, 6]]
        assert set(model.threads) == {LOOP}

    @in_loop
    async def test_giving_up_fails_those_who_wait_for_the_round_s_end(self) -> None:
        model = RowModel()
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            asked = [house.ask(i) for i in range(3)]
            await asyncio.sleep(0)
            house.dispatcher.abort("too late")
            assert await errors_of(*asked) == [Draining] * 3
        assert model.executed == []

    @in_loop
    async def test_a_lane_that_has_died_is_not_run_on_the_loop_either(self) -> None:
        def behaviour(x: list[int]) -> None:
            if x == [13]:
                raise SystemExit

        model = RowModel(behaviour)
        async with house_of(model, runs_by_shape=True) as house:
            house.make_light()
            assert await house.ask(1) == [1]
            with capture_logs():
                assert await errors_of(house.ask(13, width=2)) == [ModelFailed]
            assert await errors_of(house.ask(2), house.ask(3)) == [ModelFailed] * 2
        assert model.executed == [[1], [13]]
