"""Callbacks of a ProcessEngine for the owner of a shared process, and for a client of one."""

import asyncio

import pytest

from frameworks.core.errors import ModelFailed
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.messages import Ping, Pong
from tests.frameworks.engine.process.fake_link import CRASH, Harness, outcomes
from tests.support.loops import in_loop, settle, soon


class Noted:
    """The events of an engine, in order."""

    def __init__(self, harness: Harness) -> None:
        self.events: list[str] = []
        engine = harness.engine
        engine.on_started = self._started
        engine.on_lost = self._lost
        engine.on_settled = lambda: self.events.append("settled")

    def _started(self, started: Started) -> None:
        assert started.loaded.load_s == 0.5
        self.events.append("started")

    def _lost(self, loss: Loss) -> None:
        self.events.append(loss.label)


@in_loop
async def test_starts_and_losses_are_reported() -> None:
    harness = Harness()
    noted = Noted(harness)
    before = harness.engine.started
    assert before is None
    started = await harness.engine.open()
    assert harness.engine.started is started
    assert noted.events == ["started"]
    harness.link.lose()
    # The loss is reported before the restart, and the last start is kept.
    assert noted.events == ["started", "sigsegv"]
    assert harness.engine.started is started
    await harness.restarted()
    assert noted.events == ["started", "sigsegv", "settled", "started"]
    assert harness.engine.started is not started
    harness.engine.abort("the test ends")


@in_loop
async def test_settled_follows_last_suspect() -> None:
    harness = Harness()
    await harness.engine.open()
    noted = Noted(harness)
    futures = [harness.submit(x) for x in range(4)]
    first, second, third, fourth = harness.numbers()
    harness.link.begin(first, second, third)
    assert harness.engine.num_suspects == 0
    harness.link.lose()
    assert harness.engine.num_suspects == 3
    link = await harness.restarted()
    link.complete(first)
    futures[1].cancel()
    await settle()
    assert harness.engine.num_suspects == 1
    assert "settled" not in noted.events
    link.complete(third)
    assert noted.events == ["sigsegv", "started", "settled"]
    assert harness.engine.num_suspects == 0
    link.complete(fourth)
    assert await outcomes([futures[0], *futures[2:]]) == [first, third, fourth]
    assert noted.events[-1] == "settled"
    assert noted.events.count("settled") == 1


@in_loop
async def test_suspects_settle_after_second_crash() -> None:
    harness = Harness()
    await harness.engine.open()
    noted = Noted(harness)
    futures = [harness.submit(x) for x in range(2)]
    poison, innocent = harness.numbers()
    harness.link.begin(poison, innocent)
    harness.link.lose()
    for count in (2, 3):
        link = await harness.restarted(count)
        link.begin(poison)
        link.lose()
    assert harness.engine.num_suspects == 1
    link = await harness.restarted(4)
    assert noted.events == ["sigsegv", "started"] * 3
    link.complete(innocent)
    assert noted.events[-1] == "settled"
    failed, answered = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(failed, ModelFailed)
    assert not isinstance(answered, BaseException)


@in_loop
async def test_failed_restart_is_reported() -> None:
    harness = Harness()
    await harness.engine.open()
    reasons: list[str] = []
    harness.engine.on_start_failed = reasons.append
    harness.failures.append(ModelFailed("it crashed at its load"))
    harness.link.lose()
    await soon(lambda: reasons == ["it crashed at its load"])
    assert harness.engine.outage == "it crashed at its load"
    harness.may_start.set()
    await harness.restarted()
    assert len(reasons) == 1


@in_loop
async def test_attach_needs_running_process() -> None:
    harness = Harness()
    await harness.engine.open()
    assert harness.engine.attach() == [1, 2, 3]
    harness.may_start.clear()
    harness.link.lose()
    with pytest.raises(ModelFailed, match=f"{CRASH.message}; try again in"):
        harness.engine.attach()
    harness.may_start.set()
    await harness.restarted()
    assert harness.engine.attach() == [1, 2, 3]


@pytest.mark.parametrize("is_shared", [True, False])
@in_loop
async def test_shared_process_is_asked_while_idle(is_shared: bool) -> None:
    harness = Harness(max_batch_seconds=0.02)
    harness.engine.is_shared = is_shared
    await harness.engine.open()
    link = harness.link
    if is_shared:
        await soon(lambda: bool(link.sent_of(Ping)))
        link.receive(Pong(link.sent_of(Ping)[0].number, 1.0))
        await soon(lambda: harness.counts.restarts["hang"] > 0)
    else:
        # Timers of the same loop: the engine has looked several times by then.
        await asyncio.sleep(0.05)
        assert not link.sent_of(Ping)
    harness.engine.abort("the test ends")


@in_loop
async def test_client_asks_for_no_hanging_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(max_batch_seconds=0.02)
    harness.engine.is_shared = True
    monkeypatch.delattr("tests.frameworks.engine.process.fake_link.FakeLink.attach")
    await harness.engine.open()
    await asyncio.sleep(0.05)
    assert not harness.link.sent_of(Ping)
    with pytest.raises(AssertionError, match="another owner"):
        harness.engine.attach()
    harness.engine.abort("the test ends")
