"""ClientLink behind a host in the loop of the test, and behind a peer that is no engine."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from frameworks.core.channel.messages import ChannelLost, ProtocolError
from frameworks.core.errors import Draining
from frameworks.engine.contract import RunCounts
from frameworks.engine.process.client import client_link
from frameworks.engine.process.client.client_link import ClientLink
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.messages import Cancel, Close, Closed, Free, FromEngine, Loaded, Pong
from tests.support.batch_models import DoublingModel, Gate, numbers
from tests.support.channels import End
from tests.support.engine_hosts import SETTINGS, ArrayModel, FakeSource, HostLink, arenas, array_rows, hosted
from tests.support.loops import in_loop, settle, soon

CRASH = Loss("sigsegv", "the engine process ended by SIGSEGV")


class Recorder(ProcessEngine):
    """Keeps what it gets. Messages of the kind `refused` are damaged for it."""

    def __init__(self) -> None:
        self.messages: list[FromEngine] = []
        self.losses: list[Loss] = []
        self.refused: type[FromEngine] | None = None

    def received(self, messages: Sequence[FromEngine]) -> None:
        if any(type(message) is self.refused for message in messages):
            raise ProtocolError("expected another message")
        self.messages += messages

    def lost(self, loss: Loss) -> None:
        self.losses.append(loss)


class Peer:
    """A link, its engine, and the end of the connection that the process would have."""

    def __init__(self) -> None:
        self.engine = Recorder()
        self.loss: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self.killed: list[tuple[str, str]] = []
        self.end = End()

    async def open(self) -> ClientLink:
        ours, theirs = socket.socketpair()
        fds = [os.dup(each.fd) for each in arenas()]
        link = ClientLink([ours.detach(), *fds], "m", self._find_loss, lambda *order: self.killed.append(order))
        await self.end.channel.open(theirs)
        await link.open(self.engine)
        return link

    async def _find_loss(self) -> Loss:
        return await asyncio.shield(self.loss)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ClientLink, Peer]]:
    peer = Peer()
    link = await peer.open()
    try:
        yield link, peer
    finally:
        link.abandon("the test ends")
        peer.end.channel.close()


@in_loop
async def test_messages_reach_listener() -> None:
    async with connected() as (link, peer):
        link.send(Cancel(3))
        assert await peer.end.received_count(1) == [Cancel(3)]
        peer.end.channel.send(Pong(1, 0.5))
        peer.end.channel.send(Closed())
        await soon(lambda: peer.engine.messages == [Pong(1, 0.5)])
        assert not link.is_full


@in_loop
async def test_loss_is_that_of_owner() -> None:
    async with connected() as (link, peer):
        peer.end.channel.fail("killed")
        await settle()
        assert peer.engine.losses == []
        link.send(Cancel(1))
        peer.loss.set_result(CRASH)
        await soon(lambda: bool(peer.engine.losses))
        await settle()
        assert peer.engine.losses == [CRASH]


@pytest.mark.parametrize("error", [None, ChannelLost("control"), KeyError("of a caller")])
@in_loop
async def test_unknown_loss_is_reported(error: Exception | None) -> None:
    async with connected() as (_, peer):
        with pytest.MonkeyPatch.context() as patch, capture_logs():
            patch.setattr(client_link, "_END_S", 0.01 if error is None else 60.0)
            if error is not None:
                peer.loss.set_exception(error)
            peer.end.channel.fail("killed")
            await soon(lambda: bool(peer.engine.losses))
        [loss] = peer.engine.losses
        assert loss.label == "protocol"
        assert loss.message.startswith("the connection to the engine process ended: the ")


@pytest.mark.parametrize("damaged", [Pong(1, 0.0), Free([7])])
@in_loop
async def test_damaged_message_asks_owner_to_kill(damaged: FromEngine) -> None:
    async with connected() as (_, peer):
        peer.engine.refused = Pong
        peer.end.channel.send(damaged)
        await soon(lambda: bool(peer.killed))
        [(label, reason)] = peer.killed
        assert label == "protocol"
        assert reason.startswith("it sent a damaged message: ")


@in_loop
async def test_abandoned_link_reports_nothing() -> None:
    async with connected() as (link, peer):
        link.abandon("the model is unloaded")
        await soon(lambda: bool(peer.end.lost))
        peer.loss.set_result(CRASH)
        await settle()
        assert peer.engine.losses == []
        assert peer.killed == []


@in_loop
async def test_abandon_ends_search_for_loss() -> None:
    async with connected() as (link, peer):
        tasks = len(asyncio.all_tasks())
        peer.end.channel.fail("killed")
        await soon(lambda: len(asyncio.all_tasks()) == tasks + 1)
        link.abandon("the model is unloaded")
        await soon(lambda: len(asyncio.all_tasks()) == tasks)
        assert peer.engine.losses == []


@in_loop
async def test_closed_link_waits_for_end() -> None:
    async with connected() as (link, peer):
        link.send(Close())
        ending = asyncio.ensure_future(link.ended(60.0))
        await settle()
        assert not ending.done()
        peer.end.channel.close()
        await ending
        assert peer.engine.losses == []


@in_loop
async def test_process_that_does_not_end_is_left() -> None:
    async with connected() as (link, peer):
        with capture_logs() as logs:
            await link.ended(0.01)
        assert [each["event"] for each in logs] == ["engine process did not end its connection"]
        await soon(lambda: bool(peer.end.lost))
        assert peer.killed == []


@asynccontextmanager
async def client_of(owner: HostLink) -> AsyncIterator[ProcessEngine]:
    """Connect an engine to the host of an owner."""

    async def start(engine: ProcessEngine) -> Started:
        ours, theirs = socket.socketpair()
        fds = [each.fd for each in arenas()]
        await owner.process.serve_client([theirs.detach(), *map(os.dup, fds)])
        link = ClientLink([ours.detach(), *map(os.dup, fds)], "m", asyncio.Event().wait, lambda *_: None)  # type: ignore[arg-type]
        await link.open(engine)
        return Started(link, Loaded(None, 1, 0.5, 0.1), ArrayModel().spec)

    engine = ProcessEngine(SETTINGS, RunCounts(), start)
    await engine.open()
    try:
        yield engine
    finally:
        engine.abort("the test ends")


@in_loop
async def test_closed_engine_gets_answers() -> None:
    gate = Gate()
    async with hosted(FakeSource(DoublingModel(gate))) as owner:
        await owner.load()
        async with client_of(owner) as engine, client_of(owner) as other:
            future = engine.submit(numbers(4))
            await soon(gate.arrived.is_set)
            closing = asyncio.ensure_future(engine.close())
            await settle()
            gate.open()
            assert (await future)["y"] == [8]
            await closing
            assert (await other.submit(numbers(5)))["y"] == [10]


@in_loop
async def test_ended_requests_of_engine_fail() -> None:
    gate = Gate()
    async with hosted(FakeSource(DoublingModel(gate))) as owner:
        await owner.load()
        async with client_of(owner) as engine, client_of(owner) as other:
            running = engine.submit(numbers(1))
            await soon(gate.arrived.is_set)
            waiting, kept = engine.submit(numbers(2)), other.submit(numbers(3))
            engine.end_requests()
            with pytest.raises(Draining, match="was unloaded"):
                await waiting
            gate.open()
            assert ((await running)["y"], (await kept)["y"]) == ([2], [6])


@in_loop
async def test_aborted_engine_frees_its_tensors() -> None:
    gate = Gate()
    async with hosted(FakeSource(ArrayModel(gate, runs_by_shape=False))) as owner:
        await owner.load()
        async with client_of(owner) as engine:
            future = engine.submit(array_rows(64, 256))
            await soon(gate.arrived.is_set)
            engine.abort("the server stops")
            with pytest.raises(Draining, match="the server stops"):
                await future
            gate.open()
            await soon(lambda: owner.process.num_tensors_in_use == 0)
        assert owner.lost is None


@in_loop
async def test_noise_of_process_ends_link() -> None:
    ours, theirs = socket.socketpair()
    peer = Peer()
    peer.loss.set_result(CRASH)
    fds = [os.dup(each.fd) for each in arenas()]
    link = ClientLink([ours.detach(), *fds], "m", lambda: peer.loss, lambda *_: None)
    await link.open(peer.engine)
    with theirs:
        theirs.sendall(b"\xff" * 64)
        await soon(lambda: peer.engine.losses == [CRASH])
    link.abandon("the test ends")
