"""Batches on real workers: every caller gets its own rows beside cancellations, failures and dead workers."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, InvalidInput, ModelFailed
from frameworks.types import TEXT_OUTPUT, Batch, TensorBatch, TextSpec, TokenBatch, Value
from tests.frameworks.scheduling.batch.dispatching import (
    BAD,
    RowModel,
    answers_of,
    errors_of,
    first_of,
    first_run,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, worker_threads_end


class TestBatches:
    @in_loop
    async def test_requests_of_one_iteration_share_batch(self) -> None:
        model = RowModel()
        async with running_dispatcher(model) as harness:
            requests = [harness.send(0), harness.send(1), harness.send(2, 3), harness.send(4)]
            assert await answers_of(*requests) == [[0], [1], [2, 3], [4]]
        assert [sorted(batch) for batch in model.executed] == [[0, 1, 2, 3, 4]]
        assert harness.batch_sizes == {5: 1}

    @in_loop
    async def test_requests_during_run_form_next_batch(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with running_dispatcher(model) as harness:
            first = harness.send(0)
            await first_run(gate)
            held_s = time.perf_counter()
            others = []
            for i in range(1, 7):
                others.append(harness.send(i))
                await asyncio.sleep(0)
            await soon(lambda: harness.dispatcher.queue_depth == 6)
            opened_s = time.perf_counter()
            gate.open()
            assert await answers_of(first, *others) == [[i] for i in range(7)]
            after_gate_s = time.perf_counter() - opened_s
        assert model.executed == [[0], [1, 2, 3, 4, 5, 6]]
        assert harness.batch_sizes == {1: 1, 6: 1}
        seconds = harness.dispatcher._counts.seconds
        assert seconds.keys() == {1, 6}
        assert seconds[1] >= opened_s - held_s, "the gate held the first batch"
        assert 0 < seconds[6] <= after_gate_s, "the second batch ran after the gate was opened"

    @in_loop
    async def test_different_shapes_never_share_batch(self) -> None:
        model = RowModel()
        async with running_dispatcher(model) as harness:
            answers = await answers_of(harness.send(9), *(harness.send(i, width=1 + i % 2) for i in range(6)))
        assert answers == [[9], *([i] for i in range(6))]
        assert sorted(map(sorted, model.executed)) == [[0, 2, 4, 9], [1, 3, 5]]

    @in_loop
    async def test_model_that_packs_later_is_noticed(self) -> None:
        model = RowModel()
        padded = TextSpec(100)
        model.spec = replace(model.spec, text=padded)
        async with running_dispatcher(model) as harness:
            for packs in (False, True, True):
                model.spec = replace(model.spec, text=replace(padded, packs=packs))
                cost = harness.dispatcher._cost
                is_known = harness.dispatcher._limits.packs is packs
                await harness.run(TokenBatch([[1], [2, 2]]))
                await harness.run(TokenBatch([[3]]))
                assert harness.dispatcher._limits.packs is packs
                assert (harness.dispatcher._cost is cost) is is_known

    @in_loop
    async def test_unpadded_texts_share_batches_by_length(self) -> None:
        model = RowModel()
        model.spec = replace(model.spec, text=TextSpec(100, unpadded_because="padding changes rows"))
        texts = TokenBatch([[1], [2, 2], [3], [4, 4], [5]])
        async with running_dispatcher(model) as harness:
            outputs = await asyncio.gather(harness.run(texts), harness.run(TokenBatch([[6, 6]])))
        assert sorted(map(sorted, model.executed)) == [[1, 3, 5], [2, 4, 6]]
        first = outputs[0][TEXT_OUTPUT]
        assert isinstance(first, np.ndarray)
        assert first.tolist() == [[1, 1], [2, 2], [3, 1], [4, 2], [5, 1]]

    @in_loop
    async def test_large_request_is_split_and_reassembled(self) -> None:
        model = RowModel()
        async with running_dispatcher(model) as harness:
            assert await harness.send(*range(100)) == list(range(100))
        assert max(map(len, model.executed)) == 8
        assert sum(size * count for size, count in harness.batch_sizes.items()) == 100

    @in_loop
    async def test_request_without_rows_is_answered(self) -> None:
        async with running_dispatcher(RowModel()) as harness:
            assert await answers_of(harness.send(), harness.send(1)) == [[], [1]]

    @in_loop
    async def test_unbatchable_tensors_run_alone(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, inputs=()) as harness:
            answers = await answers_of(harness.send(*range(20)), harness.send(20), harness.send(21))
        assert answers == [list(range(20)), [20], [21]]
        assert sorted(model.executed) == [list(range(20)), [20], [21]]

    @in_loop
    async def test_inputs_with_different_rows_run_alone(self) -> None:
        """The inputs a [2], b [1] beside a [1], b [2] would form a batch of three rows with mixed callers."""

        class Adding(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                assert isinstance(batch, TensorBatch)
                return {"sum": np.add(*(np.asarray(value) for value in batch.inputs.values()))}

        one = TensorBatch({"x": np.array([1, 2]), "b": np.array([10])})
        other = TensorBatch({"x": np.array([3]), "b": np.array([20, 30])})
        async with running_dispatcher(Adding(), inputs=("x", "b")) as harness:
            results = await asyncio.gather(*(harness.run(batch) for batch in (one, one, other)))
        assert [np.asarray(result["sum"]).tolist() for result in results] == [[11, 12], [11, 12], [23, 33]]

    @in_loop
    async def test_outputs_without_rows_are_rerun_alone(self) -> None:
        class Even(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                return {"even": np.array([x for x in first_of(batch) if x % 2 == 0])}

        async with running_dispatcher(Even()) as harness:
            results = await asyncio.gather(*(harness.run(rows(*x)) for x in ((8,), (1, 2), (3,), (4, 6))))
        assert [np.asarray(result["even"]).tolist() for result in results] == [[8], [2], [], [4, 6]]

    @in_loop
    async def test_parts_that_cannot_join_raise(self) -> None:
        class Ragged(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                return {"y": np.zeros((batch.rows, len(self.executed)))}

        async with running_dispatcher(Ragged(), max_rows=4) as harness:
            with pytest.raises(InvalidInput, match='rows of output "y" differ in shape'):
                await asyncio.wait_for(harness.run(rows(*range(8))), 60)

    @in_loop
    async def test_two_workers_share_requests(self) -> None:
        gate = Gate()
        models = [RowModel(gate), RowModel(gate)]
        async with running_dispatcher(*models, max_rows=1) as harness:
            requests = [harness.send(i) for i in range(8)]
            await soon(lambda: all(model.executed for model in models))
            gate.open()
            assert await answers_of(*requests) == [[i] for i in range(8)]
        assert all(len(model.executed) >= 2 for model in models)


class TestCancellation:
    @in_loop
    @pytest.mark.parametrize("max_rows", [3, 8], ids=["in the next batch", "queued"])
    async def test_cancelled_caller_leaves_others_answered(self, max_rows: int) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with running_dispatcher(model, max_rows=max_rows) as harness:
            first = harness.send(0)
            await first_run(gate)
            one, cancelled, other = harness.send(1), harness.send(2), harness.send(3)
            await soon(lambda: harness.dispatcher.queue_depth == (3 if max_rows > 3 else 0))
            cancelled.cancel()
            await asyncio.wait([cancelled])
            gate.open()
            assert await answers_of(first, one, other) == [[0], [1], [3]]
        assert cancelled.cancelled()
        assert [sorted(batch) for batch in model.executed] == [[0], [1, 3]]
        assert harness.batch_sizes == {1: 1, 2: 1}

    @in_loop
    async def test_caller_cancelled_during_run_harms_no_others(self) -> None:
        gate = Gate()
        async with running_dispatcher(RowModel(gate)) as harness:
            one, cancelled, other = harness.send(1), harness.send(2), harness.send(3)
            await first_run(gate)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            gate.open()
            assert await answers_of(one, other) == [[1], [3]]

    @in_loop
    async def test_batch_skipped_when_all_callers_cancelled(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with running_dispatcher(model, max_rows=2) as harness:
            first = harness.send(0)
            await first_run(gate)
            cancelled = [harness.send(*range(10 * i, 10 * i + 5)) for i in range(1, 5)]
            await soon(lambda: harness.dispatcher.queue_depth > 0)
            for each in cancelled:
                each.cancel()
            await asyncio.wait(cancelled)
            assert harness.dispatcher.queue_depth == 0
            gate.open()
            assert await first == [0]
            assert await harness.send(9) == [9]
        assert model.executed == [[0], [9]]

    @in_loop
    async def test_caller_cancelled_before_dispatch_is_never_executed(self) -> None:
        model = RowModel()
        async with running_dispatcher(model) as harness:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await harness.run(rows(1))
            assert await harness.send(2) == [2]
        assert model.executed == [[2]]


class TestFailures:
    @in_loop
    async def test_bad_row_fails_its_own_caller(self) -> None:
        model = RowModel()
        async with running_dispatcher(model) as harness:
            requests = [harness.send(1), harness.send(BAD), harness.send(2, 3)]
            assert await errors_of(*requests) == [None, InvalidInput, None]
        assert sorted(map(sorted, model.executed)) == sorted([sorted([1, BAD, 2, 3]), [1], [BAD], [2, 3]])

    @in_loop
    async def test_bad_row_of_split_request_drops_the_rest(self) -> None:
        model = RowModel()
        async with running_dispatcher(model, max_rows=2) as harness:
            bad, good = harness.send(BAD, *range(100, 200), BAD), harness.send(4)
            assert await errors_of(bad, good) == [InvalidInput, None]
            await soon(lambda: harness.dispatcher.queue_depth == 0)
        assert model.answered_rows < 100

    @in_loop
    async def test_other_error_fails_only_its_batch(self) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise ModelFailed("the device failed")

        model = RowModel(behaviour)
        async with running_dispatcher(model) as harness:
            assert await errors_of(harness.send(1), harness.send(13)) == [ModelFailed, ModelFailed]
            assert await harness.send(2) == [2]
        assert [sorted(batch) for batch in model.executed] == [[1, 13], [2]]

    @pytest.mark.parametrize("max_rows", [1, 2, 8])
    def test_dead_worker_fails_queued_and_later_requests(self, max_rows: int) -> None:
        gate = Gate()

        def behaviour(_: list[int]) -> None:
            gate()
            raise SystemExit

        async def run() -> None:
            async with running_dispatcher(RowModel(behaviour), max_rows=max_rows) as harness:
                first = harness.send(0)
                await first_run(gate)
                waiting = [harness.send(i, i + 10, i + 20) for i in range(6)]
                await soon(lambda: harness.dispatcher.queue_depth > 0)
                gate.open()
                assert await errors_of(first, *waiting) == [ModelFailed] * 7
                assert await errors_of(harness.send(1), harness.send(2)) == [ModelFailed] * 2

        with capture_logs() as logs:
            asyncio.run(run())
        assert worker_threads_end()
        assert [entry["event"] for entry in logs] == ["device thread ended"]

    def test_other_worker_continues_after_one_died(self) -> None:
        def behaviour(x: list[int]) -> None:
            if 13 in x:
                raise SystemExit

        async def run() -> None:
            async with running_dispatcher(RowModel(behaviour), RowModel(behaviour), max_rows=1) as harness:
                assert await errors_of(harness.send(13)) == [ModelFailed]
                await soon(lambda: any(worker.is_dead for worker in harness.workers))
                assert await answers_of(*(harness.send(i) for i in range(5))) == [[i] for i in range(5)]

        with capture_logs():
            asyncio.run(run())
        assert worker_threads_end()

    @in_loop
    async def test_abort_fails_queued_requests(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with running_dispatcher(model, max_rows=2) as harness:
            first = harness.send(0)
            await first_run(gate)
            waiting = [harness.send(i, i + 10, i + 20) for i in range(5)]
            await soon(lambda: harness.dispatcher.queue_depth > 0)
            harness.dispatcher.abort("too late")
            assert await errors_of(first, *waiting) == [Draining] * 6
            gate.open()
        assert model.executed == [[0]]
