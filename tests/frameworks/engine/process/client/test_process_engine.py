"""Requests to an engine process: answers, cancellation, crashes and restarts."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from math import nan
from typing import Any

import numpy as np
import pytest

from frameworks.core.channel.messages import ProtocolError
from frameworks.core.errors import Draining, InvalidInput, ModelFailed, Overloaded
from frameworks.core.progress import states
from frameworks.core.timings import SPAN_BYTES, BatchRun, RunTrace, Timings
from frameworks.engine.contract import Run
from frameworks.engine.process.wire.messages import (
    Answer,
    BatchDeltas,
    Cancel,
    Close,
    Closed,
    Counted,
    Counts,
    EndRequests,
    Failed,
    Infer,
    LoadProgress,
    Ping,
    Pong,
    Proceed,
    SpecLearned,
    StepDeltas,
)
from frameworks.engine.process.wire.serialization import answer_to_plain, error_to_plain
from frameworks.generation.sequences import StepStats
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.types import TensorBatch, TextRequest
from tests.frameworks.engine.process.fake_link import SPEC, Harness, is_failed, outcomes
from tests.support.loops import in_loop, soon


def opened(test: Callable[[Harness], Coroutine[Any, Any, None]]) -> Callable[[], Any]:
    """Run a test with an engine whose first process serves."""

    @wraps(test)
    async def run() -> None:
        harness = Harness()
        await harness.engine.open()
        await test(harness)

    del run.__wrapped__
    return in_loop(run)


@opened
async def test_answer_has_outputs_and_timings(harness: Harness) -> None:
    begun: list[bool] = []
    timings = Timings(started_s=time.perf_counter() - 2)
    batch = TensorBatch({"x": np.ones(1, np.float32)})
    future = harness.engine.submit(batch, 3, lambda: begun.append(True), timings)
    [sent] = harness.link.sent_of(Infer)
    assert (sent.priority, sent.arrived_s, sent.is_metered) == (3, timings.started_s, False)
    assert harness.engine.is_running
    harness.link.complete(sent.id)
    assert await outcomes([future]) == [sent.id]
    assert begun == [True]
    assert (timings.queue_s, timings.compute_s) == pytest.approx((0.5, 0.25))
    assert not harness.engine.is_running


@opened
async def test_phases_end_with_life_of_request(harness: Harness) -> None:
    timings = Timings()
    future = harness.engine.submit(TensorBatch({"x": np.ones(1, np.float32)}), timings=timings)
    [sent] = harness.link.sent_of(Infer)
    harness.link.receive(Answer(sent.id, answer_to_plain({"y": np.ones(1)}), nan, 1e9, -1.0))
    await future
    life_s = time.perf_counter() - timings.started_s
    assert 0 < timings.compute_s <= life_s
    assert (timings.queue_s, timings.decode_s) == (0, 0)


@opened
async def test_sampled_request_notes_batches_of_process(harness: Harness) -> None:
    trace, unsampled = RunTrace(b"s" * SPAN_BYTES), Timings()
    batch = TensorBatch({"x": np.ones(1, np.float32)})
    futures = [harness.engine.submit(batch, timings=each) for each in (Timings(trace=trace), unsampled)]
    sent = harness.link.sent_of(Infer)
    assert [each.span for each in sent] == [trace.span, b""]
    run = BatchRun(b"b" * SPAN_BYTES, 1, 2, 3, "cpu", 4, 5, (trace.span,))
    answer = answer_to_plain({"y": np.ones(1)})
    harness.link.receive(*(Answer(each.id, answer, 0.5, 0.25, runs=[run]) for each in sent))
    await asyncio.gather(*futures)
    assert trace.runs == [run]
    assert unsampled.trace is None


@opened
async def test_request_begins_once(harness: Harness) -> None:
    begun: list[bool] = []
    future = harness.engine.submit(TensorBatch({}), begin=lambda: begun.append(True))
    harness.link.begin(*harness.numbers())
    assert begun == [True]
    harness.link.complete(*harness.numbers())
    await future
    assert begun == [True]


@opened
async def test_error_of_process_reaches_caller(harness: Harness) -> None:
    future = harness.submit()
    error = InvalidInput("inputs", "expected other values")
    harness.link.receive(Failed(harness.numbers()[0], error_to_plain(error)))
    with pytest.raises(InvalidInput, match="inputs: expected other values"):
        await future


@opened
async def test_cancelled_request_ends_in_process(harness: Harness) -> None:
    future = harness.submit()
    future.cancel()
    await soon(lambda: bool(harness.link.sent_of(Cancel)))
    assert [message.id for message in harness.link.sent_of(Cancel)] == harness.numbers()
    harness.link.complete(*harness.numbers())  # sent before the cancellation arrived
    assert not harness.engine.is_running


@opened
async def test_request_is_refused_while_process_is_full(harness: Harness) -> None:
    harness.link.is_full = True
    with pytest.raises(Overloaded, match="try again"):
        harness.submit()
    harness.link.is_full = False
    future = harness.submit()
    harness.link.complete(*harness.numbers())
    await future


@opened
async def test_counts_of_process_are_added(harness: Harness) -> None:
    deltas = BatchDeltas({4: 2}, {4: 1}, {4: 0.5}, {"t": 0.5})
    message = Counts(deltas, StepDeltas(tokens=3, tenants={"t": (1, 2)}), StepStats(running=1))
    harness.link.receive(message, message)
    batches, generated = harness.counts.batches, harness.counts.generated
    assert (batches.sizes[4], batches.split[4], batches.seconds[4], batches.tenant_seconds["t"]) == (4, 2, 1.0, 1.0)
    assert (generated.tokens, generated.tenants["t"].generated) == (6, 4)
    assert harness.engine.stats == [StepStats(running=1)]


@pytest.mark.parametrize("is_lost", [False, True])
@in_loop
async def test_compilation_in_process_is_shown(is_lost: bool) -> None:
    harness = Harness(spec=replace(SPEC, awaits_kernels=True))
    await harness.engine.open()

    def shown() -> list[tuple[str, str, int, int]]:
        found = states(lambda work: work.name == "m")
        return [(each.kind, each.what, each.done, each.total) for each in found]

    for done in (0, 1):
        harness.link.receive(LoadProgress("kernels", done, 2, "kernels"))
        assert shown() == [("compile", "kernels", done, 2)]
    if is_lost:
        harness.link.lose()
    else:
        harness.link.receive(SpecLearned(SPEC))
        harness.link.receive(LoadProgress("kernels", 1, 2, "kernels"))  # sent before
    assert not shown()
    await harness.engine.close()


@opened
async def test_request_runs_again_after_crash(harness: Harness) -> None:
    futures = [harness.submit(x) for x in range(3)]
    first, second, third = harness.numbers()
    harness.link.begin(first, second)
    harness.link.lose()
    assert harness.engine.outage == "the engine process ended by SIGSEGV"
    link = await harness.restarted()
    # The requests that had begun run first, and the others after them.
    assert harness.numbers(link) == [first, second]
    link.complete(first)
    assert harness.numbers(link) == [first, second]
    late = harness.submit()
    link.complete(second)
    assert harness.numbers(link)[2] == third
    link.complete(*harness.numbers(link)[2:])
    assert await outcomes([*futures, late]) == [first, second, third, harness.numbers(link)[3]]
    assert harness.counts.restarts == {"sigsegv": 1}


@opened
async def test_poison_request_fails_alone(harness: Harness) -> None:
    futures = [harness.submit(x) for x in (1.0, 2.0)]
    poison, innocent = harness.numbers()
    harness.link.begin(poison, innocent)
    harness.link.lose()
    link = await harness.restarted()
    assert harness.numbers(link) == [poison, innocent]
    link.begin(poison, innocent)
    link.lose()
    link = await harness.restarted(3)
    assert harness.numbers(link) == [poison]
    link.begin(poison)
    link.lose()
    assert is_failed((await outcomes(futures[:1]))[0])
    # The third crash in a row, and the innocent request is still held.
    link = await harness.restarted(4)
    assert harness.numbers(link) == [innocent]
    link.complete(innocent)
    assert await outcomes(futures[1:]) == [innocent]


@opened
async def test_copies_of_poison_request_are_refused(harness: Harness) -> None:
    futures = [harness.submit(x) for x in (1.0, 1.0, 1.0, 2.0)]
    *poison, innocent = harness.numbers()
    harness.link.begin(*poison, innocent)
    harness.link.lose()
    link = await harness.restarted()
    assert harness.numbers(link) == [poison[0], innocent]
    link.begin(poison[0], innocent)
    link.lose()
    link = await harness.restarted(3)
    assert harness.numbers(link) == [poison[0]]
    link.lose()
    link = await harness.restarted(4)
    assert harness.numbers(link) == [innocent]
    link.complete(innocent)
    assert harness.numbers(link) == [innocent, poison[1]]
    link.lose()
    # The third one is refused before it is sent.
    assert harness.numbers(await harness.restarted(5)) == []
    *failed, answered = await outcomes(futures)
    assert all(map(is_failed, failed))
    assert "the same request ended its process twice" in str(failed[2])
    assert answered == innocent
    with pytest.raises(ModelFailed, match="the same request ended its process twice"):
        harness.submit(1.0)


@opened
async def test_many_copies_are_refused_together(harness: Harness) -> None:
    futures = [harness.submit(1.0) for _ in range(500)]
    harness.link.begin(*harness.numbers())
    harness.link.lose()
    for count in (2, 3):
        (await harness.restarted(count)).lose()
    await harness.restarted(4)
    assert all(map(is_failed, await outcomes(futures)))
    assert not harness.engine._calls.holds_any


@opened
async def test_requests_fail_from_second_crash_on(harness: Harness) -> None:
    harness.link.lose()
    harness.may_start.clear()
    held = harness.submit()
    harness.failures.append(ModelFailed("it crashed at its load"))
    harness.may_start.set()
    assert is_failed((await outcomes([held]))[0])
    harness.may_start.set()
    await harness.restarted()
    again = harness.submit()
    harness.link.complete(*harness.numbers())
    assert await outcomes([again]) == harness.numbers()


@opened
async def test_request_during_long_outage_is_refused(harness: Harness) -> None:
    harness.may_start.clear()
    harness.failures.append(ModelFailed("it crashed at its load"))
    harness.link.lose()
    harness.may_start.set()
    await soon(lambda: harness.engine.outage == "it crashed at its load")
    with pytest.raises(ModelFailed, match="it crashed at its load; try again in"):
        harness.submit()
    harness.engine.abort("the test ends")


@opened
async def test_cancelled_request_is_not_sent_after_restart(harness: Harness) -> None:
    kept, cancelled = harness.submit(), harness.submit()
    number = harness.numbers()[0]
    harness.may_start.clear()
    harness.link.lose()
    cancelled.cancel()
    await asyncio.sleep(0)
    harness.may_start.set()
    link = await harness.restarted()
    link.complete(number)
    assert await outcomes([kept]) == [number]
    assert harness.numbers(link) == [number]


class Budget:
    """Implement TokenBudget with a limit of 5 tokens."""

    def __init__(self) -> None:
        self.counted: list[int] = []

    async def start(self, tokens: int) -> None:
        if tokens > 5:
            raise Overloaded("no tokens are left", 1.0)
        self.counted.append(tokens)

    def use(self, tokens: int) -> None:
        self.counted.append(tokens)


def metered(budget: Budget) -> Run:
    class MeteredPermit(Permit):
        token_budget = budget

    return Run(MeteredPermit(RequestLimit("the server", None, None)), Timings())


@opened
async def test_metered_request_proceeds_within_budget(harness: Harness) -> None:
    budget = Budget()
    answer = asyncio.ensure_future(harness.engine.answer(metered(budget), TextRequest(["a"])))
    [sent] = harness.link.sent_of(Infer)
    assert sent.is_metered
    harness.link.receive(Counted(sent.id, 4))
    await soon(lambda: [message.id for message in harness.link.sent_of(Proceed)] == [sent.id])
    # After a crash it is not counted again.
    harness.link.lose()
    link = await harness.restarted()
    assert [message.is_metered for message in link.sent_of(Infer)] == [False]
    link.complete(sent.id)
    await answer
    assert budget.counted == [4]


@opened
async def test_metered_request_above_budget_fails(harness: Harness) -> None:
    answer = asyncio.ensure_future(harness.engine.answer(metered(Budget()), TextRequest(["a"])))
    [sent] = harness.link.sent_of(Infer)
    harness.link.receive(Counted(sent.id, 6))
    with pytest.raises(Overloaded):
        await answer
    assert [message.id for message in harness.link.sent_of(Cancel)] == [sent.id]


@opened
async def test_end_of_requests_is_sent(harness: Harness) -> None:
    future = harness.submit()
    harness.engine.end_requests()
    assert harness.link.sent_of(EndRequests)
    with pytest.raises(Draining):
        harness.submit()
    harness.link.complete(*harness.numbers())
    await future


@opened
async def test_abort_fails_requests_and_kills(harness: Harness) -> None:
    future = harness.submit()
    harness.engine.abort("the server stops")
    with pytest.raises(Draining, match="the server stops"):
        await future
    await soon(lambda: harness.link.is_lost)
    assert harness.counts.restarts == {}
    assert harness.engine.is_dead


@opened
async def test_close_waits_for_end(harness: Harness) -> None:
    link = harness.link
    await harness.engine.close()
    assert link.sent_of(Close)
    assert link.has_ended


@opened
async def test_closed_engine_fails_held_requests(harness: Harness) -> None:
    harness.may_start.clear()
    harness.link.lose()
    held = harness.submit()
    await harness.engine.close()
    with pytest.raises(Draining):
        await held


@opened
async def test_process_lost_at_close_fails_requests(harness: Harness) -> None:
    future = harness.submit()
    # The fake process ends without an answer.
    await harness.engine.close()
    with pytest.raises(Draining):
        await future


@opened
async def test_wrong_message_is_protocol_error(harness: Harness) -> None:
    with pytest.raises(ProtocolError):
        harness.link.receive(Closed())
    harness.submit()
    with pytest.raises(ProtocolError):
        harness.link.receive(Answer(harness.numbers()[0], ["unknown", {}], 0.0, 0.0))
    with pytest.raises(ProtocolError):
        harness.link.receive(Counted(harness.numbers()[0], 1))


@in_loop
async def test_hang_ends_process() -> None:
    harness = Harness(max_batch_seconds=0.01)
    await harness.engine.open()
    future = harness.submit()
    link = harness.link
    await soon(lambda: bool(link.sent_of(Ping)))
    link.receive(Pong(link.sent_of(Ping)[0].number, 1.0))
    await soon(lambda: link.is_lost)
    assert harness.counts.restarts == {"hang": 1}
    link = await harness.restarted()
    # The second process answers nothing at all.
    await soon(lambda: link.is_lost)
    assert is_failed((await outcomes([future]))[0])
    harness.engine.abort("the test ends")


@in_loop
async def test_integrity_check_finds_leaked_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frameworks.engine.process.client.process_engine._IDLE_S", 0.0)
    harness = Harness()
    await harness.engine.open()
    harness.engine.check_integrity()
    harness.link.num_leases = 1
    with pytest.raises(AssertionError, match="1 tensors in shared memory"):
        harness.engine.check_integrity()
