"""Batches that do not fit: halves answer every possible caller, and later batches are smaller."""

import asyncio
from collections import Counter

import numpy as np
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidInput, OutOfMemory
from frameworks.scheduling.batch.part_queue import _MAX_QUEUED_PARTS
from frameworks.types import TEXT_OUTPUT, Batch, SequenceSpec, TensorBatch, TokenBatch, Value
from tests.frameworks.scheduling.batch.dispatching import (
    BAD,
    GIANT,
    RowModel,
    answers_of,
    ceiling_of,
    errors_of,
    first_of,
    first_run,
    giant_row,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task


class TestHalves:
    @in_loop
    async def test_halves_keep_callers_whole(self) -> None:
        model = RowModel(limit=lambda: 4)
        async with running_dispatcher(model) as harness:
            requests = [harness.send(0), harness.send(1), harness.send(2, 3), harness.send(4), harness.send(5, 6)]
            assert await answers_of(*requests) == [[0], [1], [2, 3], [4], [5, 6]]
            assert (ceiling_of(harness), harness.batches_split) == (3, {7: 1})
        assert len(model.executed[0]) == 7
        assert all(len(batch) <= 3 for batch in model.executed[1:])
        assert Counter(x for batch in model.executed[1:] for x in batch) == Counter(range(7)), "each row runs once"
        assert sum(size * count for size, count in harness.batch_sizes.items()) == 7, (
            "a batch that did not fit does not count"
        )

    @in_loop
    async def test_rows_of_one_request_split_to_single_rows(self) -> None:
        model = RowModel(limit=lambda: 1)
        async with running_dispatcher(model) as harness:
            assert await harness.send(*range(8)) == list(range(8))
            # The worker may have the second pair of rows before it reports that the first one did not fit.
            assert (ceiling_of(harness), harness.batches_split) in [(1, {8: 1, 4: 2, 2: split}) for split in (1, 2)]
        assert [len(batch) for batch in model.executed[-6:]] == [1] * 6

    @in_loop
    async def test_texts_are_split_by_length(self) -> None:
        model = RowModel(limit=lambda: 40)
        async with running_dispatcher(model) as harness:
            requests = [task(harness.run(TokenBatch([[i] * (2 + 8 * (i % 2))]))) for i in range(8)]
            for i, result in enumerate(await asyncio.gather(*requests)):
                assert np.asarray(result[TEXT_OUTPUT]).tolist() == [[i, 2 + 8 * (i % 2)]]
            assert ceiling_of(harness) == 40
        assert [sorted(batch) for batch in model.executed[1:]] == [[0, 2, 4, 6], [1, 3, 5, 7]]

    @in_loop
    async def test_halves_keep_arrival_order(self) -> None:
        model = RowModel(limit=lambda: 40)
        lengths = [6, 2, 10, 2, 10, 2, 10, 7]
        async with running_dispatcher(model) as harness:
            await asyncio.gather(*(harness.run(TokenBatch([[n] * n])) for n in lengths))
        assert [sorted(batch) for batch in model.executed] == [sorted(lengths), [2, 2, 2, 6], [7, 10, 10, 10]]

    @in_loop
    async def test_halves_run_before_queued_requests(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if 0 in x else None, limit=lambda: 1)
        async with running_dispatcher(model) as harness:
            first = [harness.send(i, priority=9) for i in range(4)]
            await first_run(gate)
            others = [harness.send(i, width=2, priority=1) for i in range(10, 14)]
            await soon(lambda: harness.dispatcher.queue_depth > 0)
            gate.open()
            assert await answers_of(*first) == [[i] for i in range(4)]
            assert await errors_of(*others) == [OutOfMemory] * 4, "a row of two elements exceeds the limit"
        handed = model.executed.index([3])
        # One batch may have been handed over in advance.
        assert sum(min(batch) >= 10 for batch in model.executed[:handed]) <= 1

    @in_loop
    async def test_halves_ignore_queue_delay(self) -> None:
        model = RowModel(limit=lambda: 2)
        async with running_dispatcher(model, max_rows=4, max_delay_s=60) as harness:
            assert await answers_of(*(harness.send(i) for i in range(4))) == [[i] for i in range(4)]
        assert [len(batch) for batch in model.executed] == [4, 2, 2]

    @in_loop
    async def test_halves_count_padding(self) -> None:
        """Rows of 8 numbers are padded to 10 beside rows of 10."""

        class Padded(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                assert isinstance(batch, TensorBatch)
                return {"y": batch.inputs["x"]}

        sequence = SequenceSpec(1, {"x": 0}, None, {"y": (1,)}, None)
        model = Padded(limit=lambda: 60)
        model.spec = type(model.spec)("fake", "tensor", (), (), "cpu", "int64", 0, sequence=sequence)
        async with running_dispatcher(model) as harness:
            requests = [harness.run(rows(i, width=10 if i % 3 == 0 else 8)) for i in range(1, 8)]
            for i, result in enumerate(await asyncio.gather(*requests), 1):
                assert np.asarray(result["y"]).tolist() == [[i] * (10 if i % 3 == 0 else 8)]
            assert ceiling_of(harness) == 7 * 10 // 2

    @in_loop
    async def test_halves_may_exceed_window(self) -> None:
        """A batch of a request with more texts than the queue holds fails, and its texts are queued again."""
        model = RowModel(limit=lambda: 1)
        async with running_dispatcher(model) as harness:
            texts = TokenBatch([[i] for i in range(2 * _MAX_QUEUED_PARTS)])
            result = await asyncio.wait_for(harness.run(texts), 60)
        assert np.asarray(result[TEXT_OUTPUT])[:, 0].tolist() == list(range(2 * _MAX_QUEUED_PARTS))


class TestRowsThatNeverFit:
    @in_loop
    async def test_row_that_never_fits_fails_its_caller(self) -> None:
        model = RowModel(giant_row)
        async with running_dispatcher(model) as harness:
            requests = [harness.send(i) for i in (0, 1, GIANT, 2)] + [harness.send(3, 4)]
            assert await errors_of(*requests) == [None, None, OutOfMemory, None, None]
            assert await answers_of(requests[0], requests[4]) == [[0], [3, 4]]
        assert model.executed.count([GIANT]) == 1

    @in_loop
    async def test_single_row_is_not_run_again(self) -> None:
        model = RowModel(giant_row)
        async with running_dispatcher(model) as harness:
            assert await errors_of(harness.send(GIANT)) == [OutOfMemory]
            assert ceiling_of(harness) is None
        assert (model.executed, harness.batches_split) == ([[GIANT]], {})

    @in_loop
    async def test_row_that_never_fits_keeps_ceiling(self) -> None:
        """If a row never fits, the ceiling stays; otherwise one caller could slow all others."""
        model = RowModel(giant_row)
        async with running_dispatcher(model) as harness:
            requests = [harness.send(i) for i in (0, 1, 2, GIANT, 3, 4, 5)]
            assert (await errors_of(*requests)).count(OutOfMemory) == 1
            assert harness.batches_split.total() >= 1
            assert ceiling_of(harness) is None
            await answers_of(*(harness.send(i) for i in range(20, 28)))
        assert sorted(model.executed[-1]) == list(range(20, 28))

    @in_loop
    async def test_row_split_twice_keeps_ceiling(self) -> None:
        async with running_dispatcher(RowModel(giant_row)) as harness:
            assert await errors_of(harness.send(0), harness.send(1, 2, 3, 4, 5, 6, GIANT)) == [None, OutOfMemory]
            assert ceiling_of(harness) is None

    @in_loop
    async def test_failed_request_drops_its_queued_rows(self) -> None:
        model = RowModel(giant_row)
        async with running_dispatcher(model, max_rows=4) as harness:
            large, other = harness.send(*range(100, 103), GIANT, *range(104, 400)), harness.send(1)
            assert await errors_of(large, other) == [OutOfMemory, None]
            await soon(lambda: harness.dispatcher.queue_depth == 0)
        assert model.answered_rows < 40

    @in_loop
    async def test_inseparable_rows_fail_together(self) -> None:
        model = RowModel(limit=lambda: 3)
        async with running_dispatcher(model, inputs=()) as harness:
            assert await errors_of(harness.send(*range(4)), harness.send(5)) == [OutOfMemory, None]
            assert ceiling_of(harness) is None
        assert sorted(model.executed) == [[0, 1, 2, 3], [5]]

    @in_loop
    async def test_invalid_row_beside_it_is_refused(self) -> None:
        def behaviour(x: list[int]) -> None:
            if len(x) > 4:
                raise OutOfMemory("too much")

        async with running_dispatcher(RowModel(behaviour)) as harness:
            requests = [harness.send(0), harness.send(1, 2), harness.send(BAD), harness.send(3), harness.send(4, 5, 6)]
            assert await errors_of(*requests) == [None, None, InvalidInput, None, None]

    @in_loop
    async def test_result_that_cannot_join_fails_its_caller(self) -> None:
        class Wide(RowModel):
            def answer(self, batch: Batch) -> dict[str, Value]:
                width = 2**50 if max(first_of(batch)) > 100 else 1
                return {"y": np.broadcast_to(np.int8(0), (batch.rows, width))}

        async with running_dispatcher(Wide(), max_rows=4) as harness:
            wide, narrow = (task(harness.run(rows(*x))) for x in (range(100, 110), range(10)))
            assert await errors_of(wide, narrow) == [OutOfMemory, None]


class TestCeiling:
    @in_loop
    async def test_next_batches_keep_ceiling_until_it_rises(self) -> None:
        room = 4
        model = RowModel(limit=lambda: room)
        async with running_dispatcher(model) as harness:
            assert await answers_of(*(harness.send(i) for i in range(8))) == [[i] for i in range(8)]
            assert ceiling_of(harness) == 4
            for round_ in range(3):
                model.executed.clear()
                await answers_of(*(harness.send(i + 10 * round_) for i in range(8)))
                assert max(map(len, model.executed)) <= 4
            # Two batches per round and sixteen per rise; all memory is free again.
            room = 8
            for _ in range(60):
                await answers_of(*(harness.send(i) for i in range(8)))
            assert ceiling_of(harness) is None
            model.executed.clear()
            await answers_of(*(harness.send(i) for i in range(8)))
        assert sorted(model.executed[0]) == list(range(8))
        assert harness.batches_split == {8: 1}

    @in_loop
    async def test_ceiling_splits_new_and_queued_requests(self) -> None:
        gate = Gate()
        model = RowModel(gate, limit=lambda: 4)
        async with running_dispatcher(model) as harness:
            first = harness.send(*range(8))
            await first_run(gate)
            waiting = [harness.send(*range(10 * i, 10 * i + 8)) for i in range(1, 6)]
            await soon(lambda: harness.dispatcher.queue_depth >= 4)
            gate.open()
            assert await first == list(range(8))
            assert await answers_of(*waiting) == [[*range(10 * i, 10 * i + 8)] for i in range(1, 6)]
            assert await harness.send(*range(70, 84)) == list(range(70, 84))
        # The first batch and the batch that was handed over in advance may be split.
        assert harness.batches_split.total() <= 2
        assert model.executed[-4:] == [[70, 71, 72, 73], [74, 75, 76, 77], [78, 79, 80, 81], [82, 83]]

    @in_loop
    async def test_request_split_in_queue_keeps_its_place(self) -> None:
        first_gate, last_gate = Gate(), Gate()
        gates = {0: first_gate, 24: last_gate}
        model = RowModel(lambda x: gates[x[0]]() if x[0] in gates else None, limit=lambda: 4)
        async with running_dispatcher(model, ageing_s=100) as harness:
            requests = [harness.send(*range(8))]
            await first_run(first_gate)
            requests += [harness.send(*range(i, i + 8), priority=9) for i in (20, 30)]
            await soon(lambda: harness.dispatcher.queue_depth == 1)
            first_gate.open()
            await first_run(last_gate)
            # The first half of the last request is handed over in advance.
            await soon(lambda: harness.dispatcher.queue_depth == 1)
            requests.append(harness.send(99, priority=1))
            await soon(lambda: harness.dispatcher.queue_depth == 2)
            last_gate.open()
            assert await answers_of(*requests) == [[*range(8)], [*range(20, 28)], [*range(30, 38)], [99]]
        assert model.executed[-3:] == [[30, 31, 32, 33], [99], [34, 35, 36, 37]]

    def test_first_split_is_logged_with_figures(self) -> None:
        async def run() -> None:
            async with running_dispatcher(RowModel(limit=lambda: 2)) as harness:
                for _ in range(4):
                    await answers_of(*(harness.send(i) for i in range(8)))

        with capture_logs() as logs:
            asyncio.run(run())
        [entry] = logs
        assert (entry["log_level"], entry["model"], entry["rows"], entry["ceiling"]) == ("warning", "m", 8, 4)
