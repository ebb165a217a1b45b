"""Inline runs on the event loop: only fast shapes run there, and slow runs end it."""

import asyncio

import pytest

from frameworks.scheduling.batch.inline import LIGHT_S, InlinePolicy
from tests.frameworks.scheduling.batch.dispatching import (
    LOOP_THREAD,
    WORKER_THREAD,
    RowModel,
    answers_of,
    compute,
    first_run,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon


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
