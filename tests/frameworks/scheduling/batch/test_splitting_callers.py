"""Batches that do not fit, while callers cancel, instances die and memory varies."""

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from frameworks.core.errors import ModelFailed, OutOfMemory
from frameworks.scheduling.batch.request import Outputs
from frameworks.types import Batch, TokenBatch
from tests.frameworks.scheduling.batch.dispatching import (
    GIANT,
    Harness,
    RowModel,
    answers_of,
    errors_of,
    first_run,
    giant_row,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, settle, soon, task, worker_threads_end


class TestInterruptions:
    @in_loop
    async def test_caller_cancelled_between_halves_harms_no_others(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x in ([0, 1], [0, 1, 2, 3]) else None, limit=lambda: 4)
        async with running_dispatcher(model) as harness:
            requests = [harness.send(2 * i, 2 * i + 1) for i in range(4)]
            await first_run(gate)
            requests[3].cancel()
            await asyncio.wait([requests[3]])
            gate.open()
            assert await answers_of(*requests[:3]) == [[0, 1], [2, 3], [4, 5]]
        assert not [batch for batch in model.executed[3:] if 6 in batch]

    @in_loop
    async def test_cancelled_caller_removes_its_halves(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if x == [0] else None, limit=lambda: 1)
        async with running_dispatcher(model) as harness:
            requests = [harness.send(i) for i in range(8)]
            await first_run(gate)
            # One row runs, and one half is handed over. On a busy machine row 0 may be first and alone: then the others
            # are handed over together, and none is queued.
            await settle()
            for each in requests[1:]:
                each.cancel()
            await asyncio.wait(requests[1:])
            assert harness.dispatcher.queue_depth == 0
            gate.open()
            assert await answers_of(requests[0]) == [[0]]

    @in_loop
    async def test_batch_without_callers_is_not_split(self) -> None:
        gate = Gate()
        model = RowModel(gate, limit=lambda: 1)
        async with running_dispatcher(model) as harness:
            requests = [harness.send(i) for i in range(4)]
            await first_run(gate)
            for each in requests:
                each.cancel()
            await asyncio.wait(requests)
            gate.open()
            assert await harness.send(9) == [9]
        assert [sorted(batch) for batch in model.executed] == [[0, 1, 2, 3], [9]]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_dead_instance_fails_only_its_half(self, workers: int) -> None:
        def behaviour(x: list[int]) -> None:
            if 0 in x and len(x) < 8:
                raise SystemExit

        async def run() -> None:
            models = [RowModel(behaviour, limit=lambda: 4) for _ in range(workers)]
            async with running_dispatcher(*models) as harness:
                outcomes = await errors_of(*(harness.send(i) for i in range(8)))
                # With another instance the other half is answered.
                assert set(outcomes) == ({ModelFailed, None} if workers == 2 else {ModelFailed})
                assert outcomes[0] is ModelFailed
                assert await errors_of(harness.send(9)) == [None if workers == 2 else ModelFailed]

        with capture_logs():
            asyncio.run(run())
        assert worker_threads_end()

    @in_loop
    async def test_abort_fails_queued_halves(self) -> None:
        gate = Gate()
        model = RowModel(lambda x: gate() if len(x) < 8 else None, limit=lambda: 4)
        async with running_dispatcher(model) as harness:
            requests = [harness.send(*range(4)), harness.send(*range(4, 8))]
            await first_run(gate)
            harness.dispatcher.abort("too late")
            assert None not in await errors_of(*requests)
            gate.open()


@dataclass(frozen=True, slots=True)
class Caller:
    """A request. `texts`: lengths of texts that replace the rows. `cancelled_after`, `pause`: loop iterations."""

    rows: int
    width: int
    texts: tuple[int, ...] | None
    is_giant: bool
    cancelled_after: int | None
    pause: int


callers = st.lists(
    st.builds(
        Caller,
        rows=st.integers(1, 9),
        width=st.integers(1, 3),
        texts=st.none() | st.lists(st.integers(1, 12), min_size=1, max_size=8).map(tuple),
        is_giant=st.sampled_from([False] * 9 + [True]),
        cancelled_after=st.none() | st.none() | st.none() | st.integers(0, 8),
        pause=st.integers(0, 3),
    ),
    max_size=20,
)


class TestAnyOrder:
    @settings(max_examples=40)
    @given(callers, st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(1, 2), st.booleans())
    def test_caller_gets_its_rows_or_out_of_memory(
        self, callers: list[Caller], rooms: list[int], workers: int, is_inline: bool
    ) -> None:
        """The free memory changes every few batches; a row that fits its minimum is always answered."""
        runs = 0

        def room() -> int:
            nonlocal runs
            runs += 1
            return rooms[runs // 4 % len(rooms)]

        def behaviour(x: list[int]) -> None:
            giant_row(x)
            time.sleep(0.0001)

        models = [RowModel(behaviour, room) for _ in range(workers)]
        batches = [batch_of(caller, i) for i, caller in enumerate(callers)]

        async def run() -> None:
            async with running_dispatcher(*models, ageing_s=0.01, runs_by_shape=is_inline) as harness:
                if is_inline:
                    harness.allow_inline()
                outcomes = await asyncio.wait_for(send_all(harness, callers, batches), 60)
                for caller, batch, outcome in zip(callers, batches, outcomes, strict=True):
                    check(caller, batch, outcome, min(rooms))
                await soon(lambda: not any(worker.queue_depth for worker in harness.workers))
                await asyncio.sleep(0)
                counted = sum(size * count for size, count in harness.batch_sizes.items())
                assert counted == sum(model.answered_rows for model in models)

        with capture_logs():
            asyncio.run(run())
        assert worker_threads_end()


def batch_of(caller: Caller, i: int) -> Batch:
    """Return rows that no other caller has."""
    count = len(caller.texts) if caller.texts else caller.rows
    firsts = [1000 * (i + 1) + row for row in range(count)]
    if caller.is_giant:
        firsts[i % count] = GIANT
    if caller.texts:
        return TokenBatch([[first] * length for first, length in zip(firsts, caller.texts, strict=True)])
    return rows(*firsts, width=caller.width)


async def send_all(harness: Harness, callers: list[Caller], batches: list[Batch]) -> list[Outputs | BaseException]:
    """Send all requests, cancel some, and return the result of each."""

    async def cancel_after(request: "asyncio.Task[Outputs]", after: int) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        request.cancel()

    requests, cancellations = [], []
    for caller, batch in zip(callers, batches, strict=True):
        requests.append(task(harness.run(batch)))
        if caller.cancelled_after is not None:
            cancellations.append(task(cancel_after(requests[-1], caller.cancelled_after)))
        for _ in range(caller.pause):
            await asyncio.sleep(0)
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    await asyncio.gather(*cancellations)
    return outcomes


def check(caller: Caller, batch: Batch, outcome: Outputs | BaseException, least_room: int) -> None:
    if isinstance(outcome, asyncio.CancelledError):
        assert caller.cancelled_after is not None
        return
    longest = max(caller.texts) if caller.texts else caller.width
    if isinstance(outcome, OutOfMemory):
        assert caller.is_giant or longest > least_room
        return
    assert isinstance(outcome, dict), outcome
    assert not caller.is_giant
    expected = RowModel().answer(batch)
    for name, value in expected.items():
        got = outcome[name]
        assert np.array_equal(np.asarray(got), np.asarray(value)), name
