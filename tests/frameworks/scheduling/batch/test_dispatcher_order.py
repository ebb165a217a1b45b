"""The order of requests by priority, age and size, for any arrivals and cancellations."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import InvalidInput
from frameworks.core.timings import Timings
from frameworks.scheduling.batch.part_queue import _MAX_QUEUED_PARTS
from frameworks.types import TEXT_OUTPUT, TokenBatch
from tests.frameworks.scheduling.batch.dispatching import (
    BAD,
    Harness,
    RowModel,
    first_run,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task, worker_threads_end


class TestOrder:
    @in_loop
    async def test_priority_1_overtakes_9(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with running_dispatcher(model, max_rows=1, ageing_s=100) as harness:
            sent = [harness.send(0), harness.send(1)]  # the first runs, the second is handed over
            await first_run(gate)
            sent += [
                harness.send(9, priority=9),
                harness.send(5),
                harness.send(11, priority=1),
                harness.send(12, priority=1),
            ]
            await soon(lambda: harness.dispatcher.queue_depth == 4)
            gate.open()
            await asyncio.gather(*sent)
        assert model.executed == [[0], [1], [11], [12], [5], [9]]

    @in_loop
    async def test_aged_priority_9_overtakes_fresh_1(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with running_dispatcher(model, max_rows=1, ageing_s=0.01) as harness:
            sent = [harness.send(0), harness.send(1)]
            await first_run(gate)
            sent.append(harness.send(9, priority=9))
            await asyncio.sleep(0.1)
            sent.append(harness.send(11, priority=1))
            await soon(lambda: harness.dispatcher.queue_depth == 2)
            gate.open()
            await asyncio.gather(*sent)
        assert model.executed == [[0], [1], [9], [11]]

    @in_loop
    async def test_large_request_does_not_starve_small_one(self) -> None:
        gate = Gate()
        model = RowModel(gate)
        async with running_dispatcher(model) as harness:
            many = task(harness.run(TokenBatch([[i] * (1 + i % 7) for i in range(2000)])))
            await first_run(gate)
            assert harness.dispatcher.queue_depth <= _MAX_QUEUED_PARTS
            single = task(harness.run(TokenBatch([[5000, 1, 2, 3]])))
            await asyncio.sleep(0)
            gate.open()
            assert np.asarray((await single)[TEXT_OUTPUT]).tolist() == [[5000, 4]]
            at = next(i for i, batch in enumerate(model.executed) if 5000 in batch)
            assert sum(map(len, model.executed[:at])) <= _MAX_QUEUED_PARTS + 3 * 8
            result = await many
        assert np.asarray(result[TEXT_OUTPUT]).tolist() == [[i, 1 + i % 7] for i in range(2000)]
        assert sum(size * count for size, count in harness.batch_sizes.items()) == 2001

    @in_loop
    async def test_result_has_queue_and_compute_seconds(self) -> None:
        gate = Gate()

        def held(_: list[int]) -> None:
            gate()
            time.sleep(0.03)

        async with running_dispatcher(RowModel(held), max_rows=1) as harness:
            first, second, both = Timings(), Timings(), Timings()
            started_s = time.perf_counter()
            running = task(harness.run(rows(0), timings=first))
            await first_run(gate)
            arrived_s = time.perf_counter()
            waiting = harness.dispatcher.submit(rows(1), timings=second)
            held_s = time.perf_counter()
            await asyncio.sleep(0.03)
            held_s = time.perf_counter() - held_s
            gate.open()
            await asyncio.gather(running, waiting)
            await harness.run(rows(1, 2), timings=both)
        assert 0 <= first.queue_s <= arrived_s - started_s, "only the second waited for a run"
        assert first.compute_s >= held_s + 0.03
        assert second.queue_s >= held_s + 0.03
        assert second.compute_s >= 0.03
        assert both.compute_s >= 0.06

    @settings(max_examples=30)
    @given(
        requests=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=6),
        max_rows=st.integers(1, 9),
        workers=st.integers(1, 2),
    )
    def test_texts_of_a_batch_count_it_once(self, requests: list[list[int]], max_rows: int, workers: int) -> None:
        """`requests`: the lengths of the texts of each."""
        runs: list[tuple[float, float, list[int]]] = []

        def run_for_a_while(x: list[int]) -> None:
            begun_s = time.perf_counter()
            time.sleep(0.0005)
            runs.append((begun_s, time.perf_counter(), x))

        async def ask(harness: Harness, number: int, lengths: list[int]) -> None:
            timings, begun_s = Timings(), time.perf_counter()
            await harness.run(TokenBatch([[number] * length for length in lengths]), timings=timings)
            life_s = time.perf_counter() - begun_s
            own = [(begun_s, ended_s) for begun_s, ended_s, x in runs if number in x]
            assert max(ended_s - begun_s for begun_s, ended_s in own) <= timings.compute_s <= life_s
            assert 0 <= timings.queue_s <= life_s
            # The runs of one worker do not overlap: each counts once. The worker adds what it does around a run.
            if workers == 1:
                assert timings.compute_s >= sum(ended_s - begun_s for begun_s, ended_s in own)

        async def run() -> None:
            models = [RowModel(run_for_a_while) for _ in range(workers)]
            async with running_dispatcher(*models, max_rows=max_rows) as harness:
                begun_s = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for number, lengths in enumerate(requests):
                        group.create_task(ask(harness, number, lengths))
                life_s = time.perf_counter() - begun_s
                counts = harness.dispatcher._counts
                assert sum(counts.tenant_seconds.values()) <= workers * life_s
                assert sum(counts.seconds.values()) <= workers * life_s

        asyncio.run(run())


@dataclass(frozen=True, slots=True)
class Caller:
    """A request. `cancelled_after`: loop iterations; None means never. `pause`: iterations before the next request."""

    rows: int
    width: int
    priority: int
    is_bad: bool
    cancelled_after: int | None
    pause: int


callers = st.lists(
    st.builds(
        Caller,
        rows=st.integers(0, 7),
        width=st.integers(1, 2),
        priority=st.integers(1, 9),
        is_bad=st.sampled_from([False] * 9 + [True]),
        cancelled_after=st.none() | st.none() | st.integers(0, 6),
        pause=st.integers(0, 4),
    ),
    max_size=25,
)


class TestAnyOrder:
    @settings(max_examples=60)
    @given(callers, st.integers(1, 6), st.integers(1, 2), st.booleans())
    def test_every_caller_gets_its_own_rows(
        self, callers: list[Caller], max_rows: int, workers: int, is_inline: bool
    ) -> None:
        models = [RowModel(lambda x: time.sleep(0.0002 * len(x))) for _ in range(workers)]
        requests = [rows_for(caller, i) for i, caller in enumerate(callers)]

        async def run() -> Harness:
            async with running_dispatcher(
                *models, max_rows=max_rows, ageing_s=0.01, runs_by_shape=is_inline
            ) as harness:
                if is_inline:
                    harness.allow_inline(width=1)
                answers = await asyncio.wait_for(send_all(harness, callers, requests), 60)
                for caller, x, answer in zip(callers, requests, answers, strict=True):
                    assert is_expected(caller, x, answer)
                # Batches of cancelled callers may still run.
                await soon(lambda: not any(worker.queue_depth for worker in harness.workers))
                await asyncio.sleep(0)
            return harness

        harness = asyncio.run(run())
        assert worker_threads_end()
        executed = [batch for model in models for batch in model.executed]
        assert all(len(batch) <= max_rows for batch in executed)
        once = Counter(x for batch in executed if BAD not in batch for x in batch)
        assert all(times == 1 for times in once.values()), "no answered row runs again"
        # A request of no rows counts as one.
        counted = sum(size * count for size, count in harness.batch_sizes.items())
        assert counted == sum(model.answered_rows + model.empty_runs for model in models)


def rows_for(caller: Caller, i: int) -> list[int]:
    """Return rows that no other caller has."""
    x = [1000 * i + row for row in range(caller.rows)]
    if caller.is_bad and x:
        x[i % len(x)] = BAD
    return x


async def send_all(
    harness: Harness, callers: list[Caller], requests: list[list[int]]
) -> list[list[int] | BaseException]:
    """Send all requests, cancel some, and return the result of each."""

    async def cancel_after(request: "asyncio.Task[list[int]]", after: int) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        request.cancel()

    sent, cancellations = [], []
    for caller, x in zip(callers, requests, strict=True):
        sent.append(harness.send(*x, priority=caller.priority, width=caller.width))
        if caller.cancelled_after is not None:
            cancellations.append(task(cancel_after(sent[-1], caller.cancelled_after)))
        for _ in range(caller.pause):
            await asyncio.sleep(0)
    answers = await asyncio.gather(*sent, return_exceptions=True)
    await asyncio.gather(*cancellations)
    return answers


def is_expected(caller: Caller, x: list[int], answer: list[int] | BaseException) -> bool:
    if isinstance(answer, asyncio.CancelledError):
        return caller.cancelled_after is not None
    return isinstance(answer, InvalidInput) if BAD in x else answer == x
