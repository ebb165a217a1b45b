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
    errors_of,
    first_of,
    first_run,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task

LOOP_THREAD = "MainThread"
WORKER_THREAD = "worker-m0"


def compute(seconds: float) -> None:
    """Use this much CPU time of the thread."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


class TestPolicy:
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
        assert runs.most_rows("s") == 0, "the decision is final"

    def test_remembered_shapes_are_bounded(self) -> None:
        runs = InlinePolicy()
        for shape in range(10_000):
            runs.learn(shape, 1, 1e-6)
            assert runs.most_rows(shape) > 0
        assert len(runs._fastest) <= 256


class TestThreadChoice:
    @in_loop
    async def test_fast_model_moves_to_event_loop(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            for i in range(500):
                assert await harness.send(i) == [i]
                if model.threads[-1] == LOOP_THREAD:
                    break
            assert await harness.send(7) == [7]
            assert await harness.send(8, width=2) == [8]
        assert model.threads[0] == WORKER_THREAD
        assert model.threads[-3:] == [LOOP_THREAD, LOOP_THREAD, WORKER_THREAD], "another shape has not been measured"

    @in_loop
    async def test_slow_model_stays_on_thread(self) -> None:
        model = RowModel(lambda _: compute(2 * LIGHT_S))
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            for i in range(20):
                assert await harness.send(i) == [i]
        assert set(model.threads) == {WORKER_THREAD}

    @in_loop
    @pytest.mark.parametrize(
        ("runs_by_shape", "max_delay_s"), [(False, 0.0), (True, 0.0001)], ids=["values matter", "delayed"]
    )
    async def test_disallowed_model_stays_on_thread(self, runs_by_shape: bool, max_delay_s: float) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=runs_by_shape, max_delay_s=max_delay_s) as harness:
            for i in range(50):
                assert await harness.send(i) == [i]
        assert set(model.threads) == {WORKER_THREAD}

    @in_loop
    async def test_more_rows_go_to_thread(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, max_rows=4) as harness:
            harness.allow_inline(most_rows=3)
            assert await harness.send(*range(4)) == list(range(4))
            assert model.threads == [WORKER_THREAD]
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, max_rows=4) as harness:
            harness.allow_inline(most_rows=3)
            assert await harness.send(*range(3)) == list(range(3))
            assert model.threads == [LOOP_THREAD]
            harness.allow_inline()
            assert await harness.send(*range(5)) == list(range(5))
            assert model.threads == [LOOP_THREAD, WORKER_THREAD, WORKER_THREAD], "max_batch_size holds on the loop too"

    @in_loop
    async def test_request_behind_busy_worker_is_queued(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x == [0] else None)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            first = harness.send(0, width=2)
            await first_run(gate)
            others = [harness.send(i) for i in (1, 2)]
            await soon(lambda: harness.dispatcher.queue_depth == 2)
            assert model.executed == [[0]]
            gate.open()
            assert await answers_of(first, *others) == [[0], [1], [2]]
            assert await harness.send(3) == [3]
        assert (model.executed, model.threads) == ([[0], [1, 2], [3]], [WORKER_THREAD, WORKER_THREAD, LOOP_THREAD])

    @in_loop
    async def test_request_does_not_overtake_queue(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            requests = [harness.send(1, priority=9), harness.send(2, priority=1, width=2)]
            assert await answers_of(*requests) == [[1], [2]]
        assert (model.executed, model.threads) == ([[2], [1]], [WORKER_THREAD, WORKER_THREAD])

    @in_loop
    async def test_idle_instance_serves_beside_busy_one(self) -> None:
        gate = Gate()
        models = [RowModel(gate), RowModel()]
        async with running_dispatcher(*models, runs_by_shape=True) as harness:
            harness.allow_inline()
            first = harness.send(0, width=2)
            await first_run(gate)
            assert await asyncio.wait_for(harness.send(1), 60) == [1]
            gate.open()
            assert await first == [0]
        assert [model.threads for model in models] == [[WORKER_THREAD], [LOOP_THREAD]]

    @in_loop
    async def test_shape_slow_three_times_stays_on_thread(self) -> None:
        model = RowModel(lambda x: compute(0.004) if x[0] < 3 else None)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            for i in range(30):
                assert await harness.send(i) == [i]
        assert model.threads == [LOOP_THREAD] * 3 + [WORKER_THREAD] * 27


class TestSharedRuns:
    @in_loop
    async def test_requests_of_one_iteration_form_one_batch(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            started: list[int] = []
            requests = [harness.send(0), harness.send(1, 2), harness.send(3)]
            last = task(harness.run(rows(4), begin=lambda: started.append(4)))
            assert await answers_of(*requests) == [[0], [1, 2], [3]]
            assert np.asarray((await last)["y"]).tolist() == [[8]]
        assert (model.executed, model.threads) == ([[0, 1, 2, 3, 4]], [LOOP_THREAD])
        assert harness.batch_sizes == {5: 1}
        assert started == [4]

    @in_loop
    async def test_different_shapes_run_one_by_one(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            for width in (1, 2):
                harness.allow_inline(width=width)
            assert await answers_of(*(harness.send(i, width=1 + i % 2) for i in range(6))) == [[i] for i in range(6)]
        assert (model.executed, set(model.threads)) == ([[0, 2, 4], [1, 3, 5]], {LOOP_THREAD})

    @in_loop
    async def test_unbatchable_request_runs_alone(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, inputs=()) as harness:
            harness.allow_inline()
            assert await answers_of(*(harness.send(i) for i in range(3))) == [[0], [1], [2]]
        assert (model.executed, set(model.threads)) == ([[0], [1], [2]], {LOOP_THREAD})

    @in_loop
    async def test_urgent_requests_first_beyond_max_rows(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True, max_rows=2) as harness:
            harness.allow_inline()
            requests = [harness.send(i, priority=priority) for i, priority in enumerate((9, 5, 1, 5, 1))]
            assert await answers_of(*requests) == [[i] for i in range(5)]
        assert (model.executed, set(model.threads)) == ([[2, 4], [1, 3], [0]], {LOOP_THREAD})

    @in_loop
    async def test_cancelled_caller_is_skipped(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            one, cancelled, other = (harness.send(i) for i in range(3))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert await answers_of(one, other) == [[0], [2]]
            assert cancelled.cancelled()
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
            harness.allow_inline()
            requests = [harness.send(i) for i in range(3)]
            while not all(each.done() for each in requests):
                turns.append("turn")
                await asyncio.sleep(0)
            assert await answers_of(*requests) == [[0], [1], [2]]
        assert "run run" not in " ".join(turns)
        assert model.executed == [[0], [1], [2]]


async def answered_in_iteration(harness: Harness, *x: int) -> list[bool]:
    """Send all requests in one loop iteration; return which are answered before the next."""
    requests = [harness.send(each) for each in x]
    await asyncio.sleep(0)
    done = [each.done() for each in requests]
    assert await answers_of(*requests) == [[each] for each in x]
    await asyncio.sleep(0)
    return done


class TestSingleRequests:
    @in_loop
    async def test_single_request_runs_immediately(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await answered_in_iteration(harness, 0) == [False], "a first request waits for others"
            for i in (1, 2, 3):
                assert await answered_in_iteration(harness, i) == [True]
        assert (model.executed, set(model.threads)) == ([[0], [1], [2], [3]], {LOOP_THREAD})
        assert harness.batch_sizes == {1: 4}

    @in_loop
    @pytest.mark.parametrize("others", [1, 2, 5])
    async def test_second_request_of_iteration_restores_batching(self, others: int) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await answered_in_iteration(harness, 0) == [False]
            assert await answered_in_iteration(harness, *range(1, 2 + others)) == [True, *[False] * others]
            assert await answered_in_iteration(harness, *range(10, 11 + others)) == [False] * (1 + others)
            assert await answered_in_iteration(harness, 20) == [False]
            assert await answered_in_iteration(harness, 21) == [True], "a single request restores immediate runs"
        together = [list(range(2, 2 + others)), list(range(10, 11 + others))]
        assert model.executed == [[0], [1], *together, [20], [21]]

    @in_loop
    async def test_busy_worker_prevents_immediate_run(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x == [9] else None)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await answered_in_iteration(harness, 0) == [False]
            busy = harness.send(9, width=2)
            await first_run(gate)
            waiting = harness.send(1)
            await soon(lambda: harness.dispatcher.queue_depth == 1)
            gate.open()
            assert await answers_of(busy, waiting) == [[9], [1]]
        assert model.executed == [[0], [9], [1]]


class TestFailures:
    @in_loop
    async def test_bad_row_fails_its_own_caller(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await errors_of(harness.send(1), harness.send(BAD), harness.send(2, 3)) == [None, InvalidInput, None]
        assert (model.executed, set(model.threads)) == ([[1, BAD, 2, 3], [1], [BAD], [2, 3]], {LOOP_THREAD})
        assert harness.batch_sizes.total() == 2, "a refused batch does not count"

    @in_loop
    async def test_batch_that_does_not_fit_is_halved(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await answers_of(harness.send(1), harness.send(HUGE), harness.send(2, 3)) == [[1], [HUGE], [2, 3]]
            assert (harness.batches_split, harness.dispatcher._ceiling.size) == ({4: 1}, 2)
            assert model.executed[0] == [1, HUGE, 2, 3]
            assert (model.threads[0], set(model.threads[1:])) == (LOOP_THREAD, {WORKER_THREAD})
            # The ceiling holds on the loop too.
            assert await answers_of(*(harness.send(i) for i in range(4, 8))) == [[4], [5], [6], [7]]
        assert (model.executed[-2:], model.threads[-2:]) == ([[4, 5], [6, 7]], [LOOP_THREAD] * 2)
        assert harness.batch_sizes == {1: 2, 2: 3}

    @in_loop
    async def test_request_that_does_not_fit_is_halved(self) -> None:
        model = RowModel(limit=lambda: 2)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await harness.send(*range(8)) == list(range(8))
            assert await harness.send(9, 10) == [9, 10]
            for i in range(40):
                await harness.send(i)
        first = [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1], [2, 3], [4, 5], [6, 7], [9, 10]]
        assert model.executed[:8] == first
        assert model.threads[:8] == [LOOP_THREAD, *[WORKER_THREAD] * 6, LOOP_THREAD]
        assert harness.dispatcher._ceiling.size == 3, "inline runs raise the ceiling too"

    @in_loop
    @pytest.mark.parametrize("error", [OutOfMemory("too much"), MemoryError()])
    async def test_single_row_that_does_not_fit_raises(self, error: Exception) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise error

        async with running_dispatcher(RowModel(behaviour), runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await errors_of(harness.send(13)) == [OutOfMemory]
            assert await harness.send(2) == [2]
            assert harness.dispatcher._ceiling.size is None
        assert not harness.batches_split

    @in_loop
    @pytest.mark.parametrize(
        ("error", "expected"), [(ModelFailed("the device failed"), ModelFailed), (StopIteration(), RuntimeError)]
    )
    async def test_other_error_fails_only_its_batch(self, error: Exception, expected: type[Exception]) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise error

        model = RowModel(behaviour)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await errors_of(harness.send(1), harness.send(13)) == [expected, expected]
            assert await harness.send(2) == [2]
        assert (model.executed, set(model.threads)) == ([[1, 13], [2]], {LOOP_THREAD})

    @in_loop
    @pytest.mark.parametrize("death", [SystemExit, asyncio.CancelledError])
    async def test_base_exception_does_not_end_loop(self, death: type[BaseException]) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise death

        async with running_dispatcher(RowModel(behaviour), runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await errors_of(harness.send(1), harness.send(13)) == [ModelFailed] * 2
            assert await harness.send(2) == [2]

    @in_loop
    async def test_outputs_without_rows_are_rerun_alone(self) -> None:
        class Even(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                return {"even": np.array([x for x in first_of(batch) if x % 2 == 0])}

        model = Even()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            results = await asyncio.gather(*(harness.run(rows(*x)) for x in ((8,), (1, 2), (3,), (4, 6))))
        assert [np.asarray(result["even"]).tolist() for result in results] == [[8], [2], [], [4, 6]]
        assert set(model.threads) == {LOOP_THREAD}

    @in_loop
    async def test_abort_fails_pending_requests(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            requests = [harness.send(i) for i in range(3)]
            await asyncio.sleep(0)
            harness.dispatcher.abort("too late")
            assert await errors_of(*requests) == [Draining] * 3
        assert model.executed == []

    @in_loop
    async def test_dead_worker_is_not_run_inline(self) -> None:
        def behaviour(x: list[int]) -> None:
            if x == [13]:
                raise SystemExit

        model = RowModel(behaviour)
        async with running_dispatcher(model, runs_by_shape=True) as harness:
            harness.allow_inline()
            assert await harness.send(1) == [1]
            with capture_logs():
                assert await errors_of(harness.send(13, width=2)) == [ModelFailed]
            assert await errors_of(harness.send(2), harness.send(3)) == [ModelFailed] * 2
        assert model.executed == [[1], [13]]
