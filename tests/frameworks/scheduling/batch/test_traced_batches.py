"""Sampled requests learn their batches, on workers and on the event loop; the others cost nothing."""

import asyncio
import time

from frameworks.core.timings import SPAN_BYTES, RunTrace, Timings
from frameworks.scheduling.batch.request import Outputs
from tests.frameworks.scheduling.batch.dispatching import (
    LOOP_THREAD,
    Harness,
    RowModel,
    answers_of,
    first_run,
    rows,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, settle, soon, task


def timings(number: int) -> Timings:
    """Return those of a sampled request."""
    return Timings(trace=RunTrace(number.to_bytes(SPAN_BYTES)))


def ask(harness: Harness, own: Timings, *x: int) -> "asyncio.Task[Outputs]":
    return task(harness.run(rows(*x), timings=own))


def trace_of(own: Timings) -> RunTrace:
    assert own.trace is not None
    return own.trace


@in_loop
async def test_sampled_requests_of_batch_name_it() -> None:
    gate, begun_ns = Gate(), time.time_ns()
    one, other, alone = timings(1), timings(2), timings(3)
    async with running_dispatcher(RowModel(gate)) as harness:
        first = ask(harness, alone, 0)
        await first_run(gate)
        later = [ask(harness, one, 1), harness.send(2, 3), ask(harness, other, 4)]
        await soon(lambda: harness.dispatcher.queue_depth == 3)
        gate.open()
        await asyncio.gather(first, *later)
    (run,), (linked,), (only,) = (trace_of(each).runs for each in (one, other, alone))
    assert run.requests == (trace_of(one).span, trace_of(other).span)
    assert linked == run._replace(requests=())
    assert (only.rows, only.requests) == (1, (trace_of(alone).span,))
    assert (run.rows, run.device, run.instance) == (4, "cpu", 0)
    assert run.span != only.span
    assert begun_ns <= only.begun_ns <= only.begun_ns + only.duration_ns <= time.time_ns()
    assert abs(one.compute_s * 1e9 - run.duration_ns) <= 1


@in_loop
async def test_request_notes_each_of_its_batches() -> None:
    own = timings(1)
    async with running_dispatcher(RowModel()) as harness:
        await ask(harness, own, *range(20))
    runs = trace_of(own).runs
    assert sum(run.rows for run in runs) == 20
    assert len({run.span for run in runs}) == len(runs) >= 3
    assert all(run.requests == (trace_of(own).span,) for run in runs)


@in_loop
async def test_cancelled_request_exports_no_batch() -> None:
    gate = Gate()
    cancelled, other = timings(1), timings(2)
    async with running_dispatcher(RowModel(gate)) as harness:
        held = harness.send(0)
        await first_run(gate)
        asked = [ask(harness, cancelled, 1), ask(harness, other, 2)]
        await soon(lambda: harness.dispatcher.queue_depth == 2)
        asked[0].cancel()
        await settle()
        gate.open()
        await asyncio.gather(held, *asked, return_exceptions=True)
    assert trace_of(cancelled).runs == []
    assert trace_of(other).runs[0].requests == (trace_of(other).span,)


@in_loop
async def test_request_whose_run_is_cancelled_exports_no_batch() -> None:
    gate = Gate()
    cancelled, other = timings(1), timings(2)
    async with running_dispatcher(RowModel(gate)) as harness:
        # One round of the loop collects both.
        asked = [ask(harness, cancelled, 1), ask(harness, other, 2)]
        await first_run(gate)
        asked[0].cancel()
        await settle()
        gate.open()
        await asyncio.gather(*asked, return_exceptions=True)
    (run,) = trace_of(other).runs
    assert (run.rows, run.requests) == (2, (trace_of(other).span,))
    assert trace_of(cancelled).runs == []


@in_loop
async def test_batch_on_event_loop_is_noted() -> None:
    model, one, other = RowModel(), timings(1), timings(2)
    async with running_dispatcher(model, runs_by_shape=True) as harness:
        harness.allow_inline()
        await asyncio.gather(ask(harness, one, 1), ask(harness, other, 2), harness.send(3))
        assert await answers_of(harness.send(4)) == [[4]]
    assert set(model.threads) == {LOOP_THREAD}
    assert model.executed[0] == [1, 2, 3]
    (run,), (linked,) = (trace_of(each).runs for each in (one, other))
    assert (run.rows, run.requests) == (3, (trace_of(one).span, trace_of(other).span))
    assert linked.span == run.span
