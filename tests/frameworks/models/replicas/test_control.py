import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from app.observability.process_counts import ProcessCounts
from app.workers.messages import (
    CollectTallies,
    DrainWorker,
    FailedKeyNoted,
    ForgetModel,
    NoteFailedKey,
    Tallies,
    TalliesReport,
    WorkerReady,
    messages_from_worker,
    messages_to_worker,
)
from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import InvalidInput, ModelNotFound
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.messages import Reply
from tests.support.channels import in_both_loops
from tests.support.control_links import connect, open_both, open_links
from tests.support.loops import settle, soon, task


def report(content: bytes) -> TalliesReport:
    return TalliesReport(content, ProcessCounts(), 0)


async def tallies(question: CollectTallies) -> Reply:
    return Tallies(question.id, report(b"counts"))


def worker_link(number: int, answer: Any = tallies) -> ControlLink:
    link = ControlLink(number, messages_to_worker())
    link.answer(CollectTallies, answer)
    return link


@in_both_loops
async def test_messages_are_handled_in_order() -> None:
    ours, theirs = ControlLink(0, messages_from_worker()), ControlLink(0, messages_to_worker())
    received: list[object] = []
    theirs.handle(ForgetModel, received.append)
    theirs.handle(DrainWorker, received.append)
    await open_both(ours, theirs)
    sent = [ForgetModel(1, "a"), ForgetModel(2, "b"), DrainWorker(1.0)]
    for message in sent:
        ours.send(message)
    await soon(lambda: len(received) == 3)
    assert received == sent
    ours.close()
    assert await theirs.lost


@in_both_loops
async def test_questions_of_both_sides_are_answered() -> None:
    ours, theirs = await open_links()
    theirs.answer(CollectTallies, tallies)

    async def note(question: NoteFailedKey) -> Reply:
        return FailedKeyNoted(question.id, question.address == "1.2.3.4")

    ours.answer(NoteFailedKey, note)
    one, other, counts = await asyncio.gather(
        theirs.ask(lambda number: NoteFailedKey(number, "1.2.3.4")),
        theirs.ask(lambda number: NoteFailedKey(number, "5.6.7.8")),
        ours.ask(CollectTallies),
    )
    assert isinstance(one, FailedKeyNoted)
    assert isinstance(other, FailedKeyNoted)
    assert isinstance(counts, Tallies)
    assert (one.is_delayed, other.is_delayed, counts.report.content) == (True, False, b"counts")
    ours.close()


@in_both_loops
async def test_handler_error_is_raised_by_ask() -> None:
    ours, theirs = await open_links()
    errors: list[Exception] = [ModelNotFound("a", ["b"]), InvalidInput("x", "expected 1, got 2"), ValueError("bug")]

    async def fail(_: CollectTallies) -> Reply:
        raise errors[0]

    theirs.answer(CollectTallies, fail)
    with pytest.raises(ModelNotFound, match="there is b"):
        await ours.ask(CollectTallies)
    del errors[0]
    with pytest.raises(InvalidInput, match="expected 1"):
        await ours.ask(CollectTallies)
    del errors[0]
    with pytest.raises(RuntimeError, match="ValueError: bug"):
        await ours.ask(CollectTallies)
    theirs.answer(CollectTallies, tallies)
    assert await ours.ask(CollectTallies)
    ours.close()


@in_both_loops
async def test_unsendable_reply_fails_its_question() -> None:
    ours, theirs = await open_links()

    async def send_object(question: CollectTallies) -> Reply:
        return Tallies(question.id, object())  # type: ignore[arg-type]

    theirs.answer(CollectTallies, send_object)
    with pytest.raises(RuntimeError):
        await ours.ask(CollectTallies)
    ours.close()


@in_both_loops
async def test_cancelled_ask_cancels_its_handler() -> None:
    ours, theirs = await open_links()
    outcomes: list[str] = []

    async def hang(_: CollectTallies) -> Reply:
        outcomes.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            outcomes.append("ended")
        raise AssertionError

    theirs.answer(CollectTallies, hang)
    asked = task(ours.ask(CollectTallies))
    await soon(lambda: outcomes == ["begun"])
    asked.cancel()
    await soon(lambda: outcomes == ["begun", "ended"])
    assert not ours._replies
    # The callback of the ended task runs in a later round of the loop.
    await soon(lambda: not theirs._answering and not theirs._tasks)
    assert theirs.is_open
    ours.close()


@in_both_loops
async def test_late_reply_is_ignored() -> None:
    ours, theirs = await open_links()
    theirs.answer(CollectTallies, tallies)
    asked = task(ours.ask(CollectTallies))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    ours._received([Tallies(1, report(b"late"))])
    assert await ours.ask(CollectTallies) == Tallies(2, report(b"counts"))
    ours.close()


@in_both_loops
async def test_lost_peer_ends_all_waits() -> None:
    ours, theirs = await open_links()
    ended = asyncio.Event()

    async def hang(_: Any) -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    theirs.answer(CollectTallies, hang)
    asked = task(ours.ask(CollectTallies))
    taken = task(ours.descriptors.take(1))
    await soon(lambda: bool(theirs._answering))
    theirs.close()
    for each in (asked, taken):
        with pytest.raises(ChannelLost):
            await each
    await ended.wait()
    assert "closed" in await ours.lost
    with pytest.raises(ChannelLost):
        await ours.ask(CollectTallies)
    ours.send(ForgetModel(2, "b"))
    assert not ours.is_open


@in_both_loops
async def test_message_without_handler_ends_the_link() -> None:
    ours, theirs = await open_links()
    theirs.send(WorkerReady())
    assert "WorkerReady" in await ours.lost
    assert await theirs.lost


@in_both_loops
async def test_failing_handler_does_not_stop_others() -> None:
    ours, theirs = await open_links()
    received: list[ForgetModel] = []

    def fail(_: DrainWorker) -> None:
        raise ValueError

    theirs.handle(DrainWorker, fail)
    theirs.handle(ForgetModel, received.append)
    ours.send(DrainWorker(1.0))
    ours.send(ForgetModel(2, "b"))
    await soon(lambda: bool(received))
    ours.close()


@in_both_loops
async def test_descriptors_belong_to_their_reply() -> None:
    ours, theirs = await open_links()
    read, write = os.pipe()

    async def pass_pipe(question: CollectTallies) -> Reply:
        theirs.descriptors.send(question.id, [write])
        return Tallies(question.id, report(b""))

    theirs.answer(CollectTallies, pass_pipe)
    reply = await ours.ask(CollectTallies)
    [received] = await ours.descriptors.take(reply.id)
    os.write(received, b"x")
    assert os.read(read, 1) == b"x"
    for each in (read, write, received):
        os.close(each)
    ours.close()


@in_both_loops
async def test_workers_call_back_in_order() -> None:
    workers, calls = Workers(), list[str]()

    def note(call: str) -> Callable[[object], None]:
        return lambda _: calls.append(call)

    def on_connect(link: ControlLink) -> None:
        calls.append("connect")
        link.handle(WorkerReady, note("ready"))

    def fail(_: ControlLink) -> None:
        raise ValueError

    workers.on_connect(on_connect)
    workers.on_joined(note("joined"))
    workers.on_left(fail)
    workers.on_left(note("left"))
    worker = worker_link(3)
    await connect(workers, worker)
    worker.send(WorkerReady())
    await soon(lambda: calls[2:] == ["ready"])
    worker.close()
    await soon(lambda: not workers.links)
    assert calls == ["connect", "joined", "ready", "left"]


@in_both_loops
async def test_replaced_worker_keeps_its_successor() -> None:
    workers, left = Workers(), list[ControlLink]()
    workers.on_left(left.append)
    first, second = worker_link(0), worker_link(0)
    before = await connect(workers, first)
    after = await connect(workers, second)
    first.close()
    await soon(lambda: left == [before])
    assert workers.links == {0: after}
    received: list[ForgetModel] = []
    second.handle(ForgetModel, received.append)
    workers.links[0].send(ForgetModel(2, "b"))
    await soon(lambda: received == [ForgetModel(2, "b")])
    await settle()
    second.close()
