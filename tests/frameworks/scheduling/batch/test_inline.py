"""Inline runs on the event loop: only fast shapes, batched by iteration, and revocable."""

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
    Harness,
    RowModel,
    answers_of,
    arrival,
    errors_of,
    first_of,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task

LOOP = "MainThread"
LANE = "worker-m0"


def compute(seconds: float) -> None:
    """Use this much CPU time of the thread."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


class TestWhatIsKnown:
    def test_unmeasured_shape_is_not_inline(self) -> None:
        runs = InlinePolicy()
        assert runs.most_rows("s") == 0
        runs.learn("s", 1, LIGHT_S / 10)
        assert (runs.most_rows("s"), runs.most_rows("other")) == (10, 0)

    def test_fastest_run_decides(self) -> None:
        runs = InlinePolicy()
        for count, seconds, most in ((1, 1.0, 0), (4, LIGHT_S / 2, 8), (1, LIGHT_S / 2, 8), (8, LIGHT_S / 2, 16)):
            runs.learn("s", count, seconds)
            assert runs.most_rows("s") == most

    def test_single_fast_run_allows_one_row(self) -> None:
        """Eight rows exceeded the limit of an inline run, so only one row may run inline."""
        runs = InlinePolicy()
        runs.learn("s", 8, LIGHT_S * 5)
        assert runs.most_rows("s") == 1
        runs = InlinePolicy()
        runs.learn("s", 1, LIGHT_S * 1.01)
        assert runs.most_rows("s") == 0

    def test_three_slow_runs_end_inline_execution(self) -> None:
        runs = InlinePolicy()
        runs.learn("s", 1, 1e-6)
        for seconds in (1.0, 1.0, 1e-6, 1.0, 1.0):
            runs.check("s", seconds)
            assert runs.most_rows("s") > 0
        runs.check("s", 1.0)
        assert runs.most_rows("s") == 0
        runs.learn("s", 1, 1e-6)
        assert runs.most_rows("s") == 0, "for good"

    def test_remembered_shapes_are_bounded(self) -> None:
        runs = InlinePolicy()
        for shape in range(10_000):
            runs.learn(shape, 1, 1e-6)
            assert runs.most_rows(shape) > 0
        assert len(runs._fastest) <= 256


class TestTheWayToTheLoop:
    @in_loop
    async def test_fast_model_moves_to_event_loop(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            for i in range(500):
                assert await harness.ask(i) == [i]
                if model.threads[-1] == LOOP:
                    break
            assert await harness.ask(7) == [7]
            assert await harness.ask(8, width=2) == [8]
        assert model.threads[0] == LANE
        assert model.threads[-3:] == [LOOP, LOOP, LANE], "another shape is not known yet"

    @in_loop
    async def test_slow_model_stays_on_thread(self) -> None:
        model = RowModel(lambda _: compute(2 * LIGHT_S))
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            for i in range(20):
                assert await harness.ask(i) == [i]
        assert set(model.threads) == {LANE}

    @in_loop
    @pytest.mark.parametrize(
        ("runs_by_shape", "max_delay_s"), [(False, 0.0), (True, 0.0001)], ids=["values matter", "it is to wait"]
    )
    async def test_disallowed_model_stays_on_thread(self, runs_by_shape: bool, max_delay_s: float) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=runs_by_shape, max_delay_s=max_delay_s) as harness:
            for i in range(50):
                assert await harness.ask(i) == [i]
        assert set(model.threads) == {LANE}

    @in_loop
    async def test_more_rows_go_to_thread(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, max_rows=4) as harness:
            harness.make_light(most_rows=3)
            assert await harness.ask(*range(4)) == list(range(4))
            assert model.threads == [LANE]
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, max_rows=4) as harness:
            harness.make_light(most_rows=3)
            assert await harness.ask(*range(3)) == list(range(3))
            assert model.threads == [LOOP]
            harness.make_light()
            assert await harness.ask(*range(5)) == list(range(5))
            assert model.threads == [LOOP, LANE, LANE], "nor is it let past max_batch_size"

    @in_loop
    async def test_request_behind_busy_worker_is_queued(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x == [0] else None)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            first = harness.ask(0, width=2)
            await arrival(gate)
            others = [harness.ask(i) for i in (1, 2)]
            await soon(lambda: harness.dispatcher.queue_depth == 2)
            assert model.executed == [[0]]
            gate.open()
            assert await answers_of(first, *others) == [[0], [1], [2]]
            assert await harness.ask(3) == [3]
        assert (model.executed, model.threads) == ([[0], [1, 2], [3]], [LANE, LANE, LOOP])

    @in_loop
    async def test_request_does_not_overtake_queue(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            asked = [harness.ask(1, priority=9), harness.ask(2, priority=1, width=2)]
            assert await answers_of(*asked) == [[1], [2]]
        assert (model.executed, model.threads) == ([[2], [1]], [LANE, LANE])

    @in_loop
    async def test_idle_instance_serves_beside_busy_one(self) -> None:
        gate = Gate()
        models = [RowModel(gate), RowModel()]
        async with running_dispatcher(*models, runs_by_shape=True) as harness:
            harness.make_light()
            first = harness.ask(0, width=2)
            await arrival(gate)
            assert await asyncio.wait_for(harness.ask(1), 60) == [1]
            gate.open()
            assert await first == [0]
        assert [model.threads for model in models] == [[LANE], [LOOP]]

    @in_loop
    async def test_shape_slow_three_times_stays_on_thread(self) -> None:
        model = RowModel(lambda x: compute(0.004) if x[0] < 3 else None)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            for i in range(30):
                assert await harness.ask(i) == [i]
        assert model.threads == [LOOP] * 3 + [LANE] * 27


class TestTogether:
    @in_loop
    async def test_requests_of_one_iteration_form_one_batch(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            begun: list[int] = []
            asked = [harness.ask(0), harness.ask(1, 2), harness.ask(3)]
            last = task(harness.run(rows(4), begin=lambda: begun.append(4)))
            assert await answers_of(*asked) == [[0], [1, 2], [3]]
            assert np.asarray((await last)["y"]).tolist() == [[8]]
        assert (model.executed, model.threads) == ([[0, 1, 2, 3, 4]], [LOOP])
        assert harness.batch_sizes == {5: 1}
        assert begun == [4]

    @in_loop
    async def test_different_shapes_run_one_by_one(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            for width in (1, 2):
                harness.make_light(width=width)
            assert await answers_of(*(harness.ask(i, width=1 + i % 2) for i in range(6))) == [[i] for i in range(6)]
        assert (model.executed, set(model.threads)) == ([[0, 2, 4], [1, 3, 5]], {LOOP})

    @in_loop
    async def test_unbatchable_request_runs_alone(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, inputs=()) as harness:
            harness.make_light()
            assert await answers_of(*(harness.ask(i) for i in range(3))) == [[0], [1], [2]]
        assert (model.executed, set(model.threads)) == ([[0], [1], [2]], {LOOP})

    @in_loop
    async def test_urgent_requests_first_beyond_max_rows(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, max_rows=2) as harness:
            harness.make_light()
            asked = [harness.ask(i, priority=priority) for i, priority in enumerate((9, 5, 1, 5, 1))]
            assert await answers_of(*asked) == [[i] for i in range(5)]
        assert (model.executed, set(model.threads)) == ([[2, 4], [1, 3], [0]], {LOOP})

    @in_loop
    async def test_cancelled_caller_is_skipped(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            one, gone, other = (harness.ask(i) for i in range(3))
            await asyncio.sleep(0)
            gone.cancel()
            assert await answers_of(one, other) == [[0], [2]]
            assert gone.cancelled()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await harness.run(rows(3))
        assert model.executed == [[0, 2]]

    @in_loop
    async def test_loop_runs_between_many_long_requests(self) -> None:
        turns: list[str] = []

        def behaviour(_: list[int]) -> None:
            time.sleep(0.0025)
            turns.append("run")

        model = RowModel(behaviour)
        async with running_dispatcher(model, runs_by_shape=True, max_rows=1) as harness:
            harness.make_light()
            asked = [harness.ask(i) for i in range(3)]
            while not all(each.done() for each in asked):
                turns.append("turn")
                await asyncio.sleep(0)
            assert await answers_of(*asked) == [[0], [1], [2]]
        assert "run run" not in " ".join(turns)
        assert model.executed == [[0], [1], [2]]


async def at_once(harness: Harness, *x: int) -> list[bool]:
    """Send all requests in one loop iteration; return which are answered before the next."""
    asked = [harness.ask(each) for each in x]
    await asyncio.sleep(0)
    done = [each.done() for each in asked]
    assert await answers_of(*asked) == [[each] for each in x]
    await asyncio.sleep(0)
    return done


class TestOneAlone:
    @in_loop
    async def test_single_request_runs_immediately(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await at_once(harness, 0) == [False], "the dispatcher does not know yet that requests arrive singly"
            for i in (1, 2, 3):
                assert await at_once(harness, i) == [True]
        assert (model.executed, set(model.threads)) == ([[0], [1], [2], [3]], {LOOP})
        assert harness.batch_sizes == {1: 4}

    @in_loop
    @pytest.mark.parametrize("others", [1, 2, 5])
    async def test_second_request_of_iteration_restores_batching(self, others: int) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await at_once(harness, 0) == [False]
            assert await at_once(harness, *range(1, 2 + others)) == [True, *[False] * others]
            assert await at_once(harness, *range(10, 11 + others)) == [False] * (1 + others)
            assert await at_once(harness, 20) == [False]
            assert await at_once(harness, 21) == [True], "a single request restores immediate runs"
        together = [list(range(2, 2 + others)), list(range(10, 11 + others))]
        assert model.executed == [[0], [1], *together, [20], [21]]

    @in_loop
    async def test_busy_worker_prevents_immediate_run(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x == [9] else None)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await at_once(harness, 0) == [False]
            busy = harness.ask(9, width=2)
            await arrival(gate)
            waiting = harness.ask(1)
            await soon(lambda: harness.dispatcher.queue_depth == 1)
            gate.open()
            assert await answers_of(busy, waiting) == [[9], [1]]
        assert model.executed == [[0], [9], [1]]


class TestThoseWhoFail:
    @in_loop
    async def test_bad_row_fails_its_own_caller(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await errors_of(harness.ask(1), harness.ask(BAD), harness.ask(2, 3)) == [None, InvalidInput, None]
        assert (model.executed, set(model.threads)) == ([[1, BAD, 2, 3], [1], [BAD], [2, 3]], {LOOP})
        assert harness.batch_sizes.total() == 2, "a refused batch does not count"

    @in_loop
    async def test_batch_that_does_not_fit_is_halved(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await answers_of(harness.ask(1), harness.ask(HUGE), harness.ask(2, 3)) == [[1], [HUGE], [2, 3]]
            assert (harness.batches_split, harness.dispatcher._ceiling.size) == ({4: 1}, 2)
            assert model.executed[0] == [1, HUGE, 2, 3]
            assert (model.threads[0], set(model.threads[1:])) == (LOOP, {LANE})
            # The ceiling holds on the loop too.
            assert await answers_of(*(harness.ask(i) for i in range(4, 8))) == [[4], [5], [6], [7]]
        assert (model.executed[-2:], model.threads[-2:]) == ([[4, 5], [6, 7]], [LOOP] * 2)
        assert harness.batch_sizes == {1: 2, 2: 3}

    @in_loop
    async def test_request_that_does_not_fit_is_halved(self) -> None:
        model = RowModel(limit=lambda: 2)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await harness.ask(*range(8)) == list(range(8))
            assert await harness.ask(9, 10) == [9, 10]
            for i in range(40):
                await harness.ask(i)
        first = [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1], [2, 3], [4, 5], [6, 7], [9, 10]]
        assert model.executed[:8] == first
        assert model.threads[:8] == [LOOP, *[LANE] * 6, LOOP]
        assert harness.dispatcher._ceiling.size == 3, "inline runs raise the ceiling too"

    @in_loop
    @pytest.mark.parametrize("error", [OutOfMemory("too much"), MemoryError()])
    async def test_single_row_that_does_not_fit_raises(self, error: Exception) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise error

        async with running_dispatcher(RowModel(behaviour), runs_by_shape=True) as harness:
            harness.make_light()
            assert await errors_of(harness.ask(13)) == [OutOfMemory]
            assert await harness.ask(2) == [2]
            assert harness.dispatcher._ceiling.size is None
        assert not harness.batches_split

    @in_loop
    @pytest.mark.parametrize(
        ("error", "came"), [(ModelFailed("the device failed"), ModelFailed), (StopIteration(), RuntimeError)]
    )
    async def test_other_error_fails_only_its_batch(self, error: Exception, came: type[Exception]) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise error

        model = RowModel(behaviour)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await errors_of(harness.ask(1), harness.ask(13)) == [came, came]
            assert await harness.ask(2) == [2]
        assert (model.executed, set(model.threads)) == ([[1, 13], [2]], {LOOP})

    @in_loop
    @pytest.mark.parametrize("death", [SystemExit, asyncio.CancelledError])
    async def test_base_exception_does_not_end_loop(self, death: type[BaseException]) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise death

        async with running_dispatcher(RowModel(behaviour), runs_by_shape=True) as harness:
            harness.make_light()
            assert await errors_of(harness.ask(1), harness.ask(13)) == [ModelFailed] * 2
            assert await harness.ask(2) == [2]

    @in_loop
    async def test_outputs_without_rows_are_rerun_alone(self) -> None:
        class Even(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                return {"even": np.array([x for x in first_of(batch) if x % 2 == 0])}

        model = Even()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            results = await asyncio.gather(*(harness.run(rows(*x)) for x in ((8,), (1, 2), (3,), (4, 6))))
        assert [np.asarray(result["even"]).tolist() for result in results] == [[8], [2], [], [4, 6]]
        assert set(model.threads) == {LOOP}

    @in_loop
    async def test_abort_fails_pending_requests(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            asked = [harness.ask(i) for i in range(3)]
            await asyncio.sleep(0)
            harness.dispatcher.abort("too late")
            assert await errors_of(*asked) == [Draining] * 3
        assert model.executed == []

    @in_loop
    async def test_dead_worker_is_not_run_inline(self) -> None:
        def behaviour(x: list[int]) -> None:
            if x == [13]:
                raise SystemExit

        model = RowModel(behaviour)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.make_light()
            assert await harness.ask(1) == [1]
            with capture_logs():
                assert await errors_of(harness.ask(13, width=2)) == [ModelFailed]
            assert await errors_of(harness.ask(2), harness.ask(3)) == [ModelFailed] * 2
        assert model.executed == [[1], [13]]
