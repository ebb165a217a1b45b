"""Requests to several processes of one model: which one gets them, the queue before them, and lost processes."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

from frameworks.core.errors import DeadlineExceeded, Draining, InvalidModel, ModelFailed
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.process.link import Loss
from frameworks.engine.process.wire.messages import Cancel, Close, Generate, Infer, SpecLearned, TextDeltas
from frameworks.generation.types import GenerateRequest, GenerationSpec, Usage
from frameworks.scheduling.admission import Permit, RequestLimit
from tests.frameworks.engine.groups import ROOM, FakeGroup, values
from tests.frameworks.engine.process.fake_link import CRASH, SPEC
from tests.support.loops import in_loop, pass_time, settle, soon, task


def opened(test: Callable[[FakeGroup], Coroutine[Any, Any, None]]) -> Callable[[], Any]:
    """Run a test with a group of two processes that serve."""

    @wraps(test)
    async def run() -> None:
        group = await FakeGroup().open()
        await test(group)
        group.engine.check_integrity()

    del run.__wrapped__
    return in_loop(run)


@opened
async def test_process_with_least_work_gets_request(group: FakeGroup) -> None:
    first = group.submit(1.0, rows=3)
    others = [group.submit(value) for value in (2.0, 3.0, 4.0, 5.0)]
    assert (group.has(0), group.has(1)) == ([1.0, 5.0], [2.0, 3.0, 4.0])
    group.answer(0)
    group.answer(1)
    assert await values(first, *others) == [1.0, 2.0, 3.0, 4.0, 5.0]


@opened
async def test_requests_wait_while_processes_are_full(group: FakeGroup) -> None:
    running = group.fill()
    waiting = [group.submit(1.0), group.submit(2.0)]
    assert (len(group.has(0)), len(group.has(1))) == (ROOM, ROOM)
    group.answer(1, group.has(1)[0])
    await settle()
    assert group.has(1)[-1] == 1.0
    assert group.engine.is_running
    group.answer(0)
    await settle()
    group.answer(0)
    group.answer(1)
    assert await values(*waiting) == [1.0, 2.0]
    await asyncio.gather(*running)
    assert not group.engine.is_running


@opened
async def test_large_request_runs_on_free_process(group: FakeGroup) -> None:
    large = group.submit(1.0, rows=100 * ROOM)
    small = group.submit(2.0)
    group.answer(0)
    group.answer(1)
    assert await values(large, small) == [1.0, 2.0]


@opened
async def test_waiting_requests_are_sent_by_priority(group: FakeGroup) -> None:
    running = group.fill()
    late, early = group.submit(1.0, priority=9), group.submit(2.0, priority=1)
    group.answer(0, group.has(0)[0])
    await settle()
    assert group.has(0)[-1] == 2.0
    group.answer(0)
    group.answer(1)
    await settle()
    group.answer(0)
    group.answer(1)
    assert await values(late, early) == [1.0, 2.0]
    await asyncio.gather(*running)


@opened
async def test_waiting_tenants_share_by_weight(group: FakeGroup) -> None:
    heavy, light = Tenant("heavy", 3.0), Tenant("light", 1.0)
    requests = group.fill()
    requests += [group.submit(100.0 + number, tenant=heavy) for number in range(60)]
    requests += [group.submit(200.0 + number, tenant=light) for number in range(60)]
    sent: list[float] = []
    for number in range(60):
        group.answer(number % 2, group.has(number % 2)[0])
        await settle()
        sent.append(group.has(number % 2)[-1])
    assert 14 <= sum(value >= 200 for value in sent) <= 16, sent
    while group.engine.is_running:
        group.answer(0)
        group.answer(1)
        await settle()
    assert len(await values(*requests)) == 120 + 2 * ROOM


@opened
async def test_cancelled_request_is_never_sent(group: FakeGroup) -> None:
    running = group.fill()
    cancelled, other = group.submit(1.0), group.submit(2.0)
    cancelled.cancel()
    await settle()
    group.answer(0)
    await settle()
    assert group.has(0) == [2.0]
    running[1].cancel()
    await settle()
    assert len(group.members[1].link.sent_of(Cancel)) == 1
    group.answer(0)
    group.answer(1)
    assert await values(cancelled, other) == [asyncio.CancelledError, 2.0]


@opened
async def test_waiting_requests_of_lost_process_move(group: FakeGroup) -> None:
    requests = [group.submit(value) for value in (1.0, 2.0, 3.0, 4.0)]
    group.begin(0, 1.0)
    lost, group.members[0].may_start = group.members[0].link, asyncio.Event()
    lost.lose()
    assert group.has(1) == [2.0, 4.0, 3.0]
    assert group.engine.outage is None
    group.answer(1)
    assert await values(*requests[1:]) == [2.0, 3.0, 4.0]
    assert not requests[0].done()
    group.members[0].may_start.set()
    await group.members[0].restarted()
    assert group.has(0) == [1.0]
    # While it runs the suspect, others get the further requests.
    further = [group.submit(value) for value in (5.0, 6.0, 7.0)]
    assert group.has(1) == [5.0, 6.0, 7.0]
    group.answer(0)
    group.answer(1)
    assert await values(requests[0], *further) == [1.0, 5.0, 6.0, 7.0]


@opened
async def test_cancelled_suspect_frees_its_process(group: FakeGroup) -> None:
    group.members[1].may_start.clear()
    group.members[1].link.lose()
    suspect = group.submit(1.0)
    group.begin(0, 1.0)
    group.members[0].link.lose()
    await group.members[0].restarted()
    waiting = group.submit(2.0)
    assert group.has(0) == [1.0]
    suspect.cancel()
    await settle()
    assert group.has(0) == [2.0]
    group.answer(0)
    assert await values(waiting) == [2.0]
    group.members[1].may_start.set()
    await group.members[1].restarted()


@opened
async def test_request_moves_once(group: FakeGroup) -> None:
    request = group.submit(1.0)
    group.members[0].link.lose()
    assert group.has(1) == [1.0]
    await group.members[0].restarted()
    group.members[1].link.lose()
    assert group.has(0) == []
    await group.members[1].restarted()
    group.answer(1)
    assert await values(request) == [1.0]


@opened
async def test_moved_requests_keep_their_order(group: FakeGroup) -> None:
    running = group.fill()
    moving, late = group.has(0), group.submit(1.0)
    group.members[0].may_start.clear()
    group.members[0].link.lose()
    group.answer(1)
    await settle()
    assert group.has(1) == moving
    group.answer(1)
    await settle()
    assert group.has(1) == [1.0]
    group.answer(1)
    await asyncio.gather(late, *running)
    group.members[0].may_start.set()
    await group.members[0].restarted()


@opened
async def test_request_waits_for_first_restart(group: FakeGroup) -> None:
    for each in group.members:
        each.may_start.clear()
        each.link.lose()
    assert group.engine.outage == CRASH.message
    request = group.submit(1.0)
    group.members[1].may_start.set()
    await group.members[1].restarted()
    assert group.has(1) == [1.0]
    group.answer(1)
    assert await values(request) == [1.0]
    group.members[0].may_start.set()
    await group.members[0].restarted()


@opened
async def test_waiting_requests_outlast_second_crash(group: FakeGroup) -> None:
    for each in group.members:
        each.link.lose()
    for each in group.members:
        await each.restarted()
    running = group.fill()
    waiting = group.submit(1.0)
    group.members[0].failures.append(InvalidModel("no file"))
    group.members[1].may_start.clear()
    for each in group.members:
        each.link.lose()
    with pytest.raises(ModelFailed):
        group.submit(2.0)
    await soon(lambda: "its files are damaged" in (group.members[0].engine.outage or ""))
    assert not waiting.done()
    for each in group.members:
        each.may_start.set()
        await each.restarted(3)
    while group.engine.is_running:
        group.answer(0)
        group.answer(1)
        await settle()
    assert await values(waiting) == [1.0]
    assert ModelFailed not in await values(*running)


@opened
async def test_requests_fail_after_failed_restarts(group: FakeGroup) -> None:
    running = group.fill()
    waiting = group.submit(1.0)
    for each in group.members:
        each.failures.append(InvalidModel("no file"))
        each.link.lose(Loss("sigkill", "it was killed"))
    assert not waiting.done()
    await soon(waiting.done)
    assert set(await values(waiting, *running)) == {ModelFailed}
    with pytest.raises(ModelFailed, match="its files are damaged"):
        group.submit(2.0)
    for each in group.members:
        each.may_start.set()
    await soon(lambda: group.engine.outage is None)
    request = group.submit(3.0)
    group.answer(0)
    group.answer(1)
    assert await values(request) == [3.0]


@opened
async def test_ended_requests_are_refused(group: FakeGroup) -> None:
    group.fill()
    waiting = group.submit(1.0)
    group.engine.end_requests()
    assert await values(waiting) == [Draining]
    assert group.engine.has_ended_requests
    with pytest.raises(Draining):
        group.submit(2.0)
    group.answer(0)
    group.answer(1)
    await settle()


@in_loop
async def test_aborted_group_fails_all_requests() -> None:
    group = await FakeGroup().open()
    requests = [*group.fill(), group.submit(1.0)]
    group.engine.abort("the server ends")
    assert set(await values(*requests)) == {Draining}
    assert group.engine.is_dead
    with pytest.raises(ModelFailed):
        group.submit(2.0)


@in_loop
async def test_closed_group_ends_its_processes() -> None:
    group = await FakeGroup().open()
    await group.engine.close()
    assert all(each.link.sent_of(Close) and each.link.has_ended for each in group.members)
    assert group.engine.is_dead


@opened
async def test_wait_counts_as_time_in_queue(group: FakeGroup) -> None:
    running = group.fill()
    timings = Timings()
    request = group.submit(1.0, timings=timings)
    await asyncio.sleep(0.05)
    group.answer(0)
    await settle()
    group.answer(0, queue_s=0.0)
    await request
    assert timings.queue_s >= 0.05
    group.answer(1)
    await asyncio.gather(*running)


@opened
async def test_spec_has_devices_of_all_processes(group: FakeGroup) -> None:
    before = group.engine.model.spec
    assert before.device == "cpu,cpu"
    learned = replace(SPEC, batched_inputs=frozenset({"x"}))
    group.members[1].link.receive(SpecLearned(learned))
    after = group.engine.model.spec
    assert after == replace(learned, device="cpu,cpu")
    group.members[0].link.receive(SpecLearned(learned))
    assert group.engine.model.spec is after


class Times:
    """Implements TokenTimes without a use of them."""

    def observe_first(self, seconds: float) -> None:
        """Do nothing."""

    def observe_next(self, seconds: float) -> None:
        """Do nothing."""


def generate(group: FakeGroup, prompts: int = 1, left_s: float | None = None) -> "asyncio.Task[Any]":
    run = Run(Permit(RequestLimit("the server", None, None)), Timings())
    request = GenerateRequest(("a",) * prompts)
    return task(group.engine.generate(run, request, Times(), left_s, in_pieces=True))


async def generating() -> FakeGroup:
    spec = replace(SPEC, task="generate", generation=GenerationSpec(max_context_tokens=9, vocabulary_size=9))
    return await FakeGroup(spec=spec).open()


def prompts_at(group: FakeGroup, member: int) -> list[int]:
    """Return the number of each generation that a process has got."""
    return [message.id for message in group.members[member].link.sent_of(Generate)]


@in_loop
async def test_generations_wait_for_running_ones() -> None:
    group = await generating()
    first = generate(group, prompts=4)
    others = [generate(group) for _ in range(5)]
    await settle()
    # Four sequences run at once at each process.
    assert (len(prompts_at(group, 0)), len(prompts_at(group, 1))) == (1, 4)
    link = group.members[0].link
    [number] = prompts_at(group, 0)
    link.receive(TextDeltas(number, [], Usage(1, 0)))
    (await first).close()
    await settle()
    assert len(prompts_at(group, 0)) == 2
    link.receive(TextDeltas(prompts_at(group, 0)[1], [], Usage(1, 1), is_over=True))
    for number in prompts_at(group, 1):
        group.members[1].link.receive(TextDeltas(number, [], Usage(1, 1), is_over=True))
    for each in others:
        assert (await each).is_over
    group.engine.check_integrity()
    assert not group.engine.is_running
    assert not group.members[0].link.sent_of(Infer)


@in_loop
async def test_generation_ends_at_its_deadline_in_queue() -> None:
    group = await generating()
    running = [generate(group, prompts=4) for _ in range(2)]
    late = generate(group, left_s=60.0)
    await settle()
    pass_time(60.0)
    with pytest.raises(DeadlineExceeded):
        await late
    for each in running:
        each.cancel()
    await asyncio.wait(running)
    group.engine.check_integrity()
