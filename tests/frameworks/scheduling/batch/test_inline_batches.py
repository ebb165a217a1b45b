"""Inline runs on the event loop: requests of one iteration share a run, and failures stay with their callers."""

import asyncio
import time

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, InvalidInput, ModelFailed, OutOfMemory
from frameworks.types import Batch, Value
from tests.frameworks.scheduling.batch.dispatching import (
    BAD,
    HUGE,
    LOOP_THREAD,
    WORKER_THREAD,
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
