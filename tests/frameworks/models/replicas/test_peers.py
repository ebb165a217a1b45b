"""Workers connect to an engine process again after its loss: those with suspects first, one at a time."""

import asyncio
from typing import cast

import pytest

from frameworks.core.errors import ModelFailed
from frameworks.models.replicas.peers import ConnectionGrants, Peer
from tests.support.loops import in_loop, settle, task


class Process:
    """A process that is up or down, and the workers that connect to it."""

    def __init__(self, *names: str) -> None:
        self.is_up = True
        self.connects = ConnectionGrants(lambda: self.is_up)
        self.peers = {name: cast("Peer", object()) for name in names}
        self.connected: list[str] = []
        self.failed: dict[str, str] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str, suspects: int = 0) -> None:
        self.tasks[name] = task(self._ask(name, suspects))

    def lose(self) -> None:
        self.is_up = False
        self.connects.lost()
        del self.connected[:]

    def start(self) -> None:
        self.is_up = True
        self.connects.started()

    async def _ask(self, name: str, suspects: int) -> None:
        try:
            await self.connects.granted(self.peers[name], suspects)
        except ModelFailed as error:
            self.failed[name] = error.message
        else:
            self.connected.append(name)


async def connected(*names: str) -> Process:
    process = Process(*names)
    for name in names:
        process.ask(name)
    await settle()
    assert process.connected == list(names)
    return process


@in_loop
async def test_workers_with_suspects_connect_alone() -> None:
    process = await connected("a", "b", "c")
    process.lose()
    process.start()
    process.ask("a")
    process.ask("b", suspects=2)
    await settle()
    assert process.connected == []
    process.ask("c", suspects=1)
    await settle()
    assert process.connected == ["b"]
    process.connects.settled(process.peers["c"])
    await settle()
    assert process.connected == ["b"]
    process.connects.settled(process.peers["b"])
    await settle()
    assert process.connected == ["b", "c"]
    process.connects.settled(process.peers["c"])
    await settle()
    assert process.connected == ["b", "c", "a"]


@in_loop
async def test_next_loss_ends_turn_of_suspects() -> None:
    process = await connected("a", "b")
    process.lose()
    process.ask("a", suspects=1)
    process.ask("b", suspects=1)
    process.start()
    await settle()
    assert process.connected == ["a"]
    process.lose()
    process.start()
    await settle()
    assert process.connected == []
    process.ask("a")
    await settle()
    assert process.connected == ["b"]
    process.connects.settled(process.peers["b"])
    await settle()
    assert process.connected == ["b", "a"]


@pytest.mark.parametrize("when", ["before it asks", "while it waits", "while its suspects run"])
@in_loop
async def test_lost_worker_holds_up_no_other(when: str) -> None:
    process = await connected("a", "b")
    process.lose()
    if when != "before it asks":
        process.ask("a", suspects=1)
    if when == "while its suspects run":
        process.start()
    process.ask("b", suspects=1)
    await settle()
    process.connects.left(process.peers["a"])
    process.start()
    await settle()
    assert process.connected[-1:] == ["b"]


@in_loop
async def test_cancelled_question_holds_up_no_other() -> None:
    process = await connected("a", "b")
    process.lose()
    process.ask("a", suspects=1)
    process.ask("b", suspects=1)
    await settle()
    process.start()
    process.tasks["a"].cancel()
    await settle()
    assert process.connected == ["b"]


@in_loop
async def test_worker_that_never_asks_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frameworks.models.replicas.peers._ASK_AGAIN_S", 0.01)
    process = await connected("a", "b")
    process.lose()
    process.ask("b")
    process.start()
    await process.tasks["b"]
    assert process.connected == ["b"]


@in_loop
async def test_failed_start_fails_those_that_wait() -> None:
    process = await connected("a", "b")
    process.lose()
    process.ask("a", suspects=1)
    await settle()
    process.connects.fail(ModelFailed("it cannot start"))
    await settle()
    assert process.failed == {"a": "it cannot start"}
    assert process.connects.was_connected(process.peers["a"])
    process.ask("a")
    process.ask("b")
    process.start()
    await settle()
    assert sorted(process.connected) == ["a", "b"]
    process.connects.close()


@in_loop
async def test_close_fails_those_that_wait() -> None:
    process = await connected("a")
    process.lose()
    process.ask("a")
    await settle()
    process.connects.close()
    await settle()
    assert process.failed == {"a": "the model was unloaded"}
