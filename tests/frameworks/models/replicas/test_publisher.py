"""The supervisor decides: versions are ready when all workers have them, and closed when all have drained them."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import ModelFailed
from frameworks.engine.process.wire.messages import BatchDeltas
from frameworks.models.replicas.messages import (
    Abandon,
    Connect,
    EndModelRequests,
    LoadForRequest,
    LocalCounts,
    ModelChanged,
    ModelRemoved,
    Poisonous,
    Prepare,
)
from frameworks.models.versions.states import ModelState as Phase
from tests.frameworks.models.replicas.fake_workers import FakeWorker, Supervisor, sent, supervising
from tests.frameworks.models.sized_registry import SizedRegistry, make_versions
from tests.support.batch_models import FakeRegistry
from tests.support.fake_probe import GIB
from tests.support.loops import in_loop, settle, soon, task
from tests.support.managing import make_manager, register


def phases(*workers: FakeWorker) -> list[str]:
    return [worker.state().state for worker in workers]


def num_closed(registry: FakeRegistry) -> int:
    return sum(model.is_closed for model in registry.made)


async def loaded(supervisor: Supervisor, *workers: FakeWorker) -> None:
    """Load "m", and wait until the workers have applied it."""
    await supervisor.manager.load("m")
    await supervisor.publisher.applied()
    assert phases(*workers) == ["ready"] * len(workers)


@in_loop
async def test_load_waits_until_all_workers_have_engine() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager)
        quick, slow = await supervisor.join(0), await supervisor.join(1)
        slow.hold()
        load = task(supervisor.manager.load("m"))
        await soon(lambda: bool(quick.prepared))
        await settle()
        assert slot.state is Phase.LOADING
        assert phases(quick) == ["loading"]
        slow.allow()
        await load
        await supervisor.publisher.applied()
        assert phases(quick, slow) == ["ready", "ready"]
        assert quick.prepared == slow.prepared == {slot.active.serving_id}
        assert quick.state().load_s == slot.active.load_s


@in_loop
async def test_changes_of_one_round_travel_together() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        worker = await supervisor.join()
        slot = register(supervisor.manager)
        slot.active.begin_load()
        slot.active.fail(ModelFailed("broken"))
        await supervisor.publisher.applied()
        [changed] = sent(worker, ModelChanged)
        [version] = changed.model.versions
        assert (version.state, version.failure.message, version.serving) == ("failed", "broken", 0)
        assert 0.0 < version.retry_in_s <= 1.0


@in_loop
async def test_unload_waits_for_references_of_workers() -> None:
    registry = FakeRegistry()
    async with supervising(make_manager(registry)) as supervisor:
        slot = register(supervisor.manager)
        busy, idle = await supervisor.join(0), await supervisor.join(1)
        await loaded(supervisor, busy, idle)
        serving = busy.begin()
        assert serving is not None
        await soon(lambda: slot.active.references == 1)
        unload = task(supervisor.manager.unload("m"))
        await soon(lambda: not idle.prepared)
        await settle()
        assert slot.state is Phase.DRAINING
        assert num_closed(registry) == 0
        busy.end(serving)
        await unload
        assert num_closed(registry) == 1
        await supervisor.publisher.applied()
        assert phases(busy, idle) == ["unloaded", "unloaded"]


@in_loop
async def test_forced_unload_ends_requests_of_workers() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager)
        worker = await supervisor.join()
        await loaded(supervisor, worker)
        worker.begin()
        await supervisor.manager.unload("m", drain_timeout_s=0.01)
        assert sent(worker, EndModelRequests)
        assert slot.state is Phase.UNLOADED


@in_loop
async def test_cancelled_drain_returns_version_to_all_workers() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager)
        busy, idle = await supervisor.join(0), await supervisor.join(1)
        await loaded(supervisor, busy, idle)
        serving = busy.begin()
        assert serving is not None
        unload = task(supervisor.manager.unload("m"))
        await soon(lambda: not idle.prepared)
        unload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unload
        await supervisor.publisher.applied()
        assert phases(busy, idle) == ["ready", "ready"]
        assert idle.prepared == {slot.active.serving_id}
        busy.end(serving)
        await supervisor.manager.unload("m")
        assert not busy.prepared | idle.prepared


@in_loop
async def test_worker_that_drained_too_early_gets_engine_again() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager)
        early, busy = await supervisor.join(0), await supervisor.join(1)
        await loaded(supervisor, early, busy)
        busy.begin()
        early.hold()
        unload = task(supervisor.manager.unload("m"))
        await soon(lambda: slot.state is Phase.DRAINING)
        await soon(lambda: len(early.inbox) > 0)
        unload.cancel()
        await soon(lambda: slot.state is Phase.READY)
        await soon(lambda: len(early.inbox) > 1)
        early.allow()  # it drains, and hears only then that it need not
        await soon(lambda: early.prepared == {slot.active.serving_id})
        await supervisor.publisher.applied()
        assert phases(early, busy) == ["ready", "ready"]


@in_loop
async def test_lost_worker_holds_up_nothing() -> None:
    registry = FakeRegistry()
    async with supervising(make_manager(registry)) as supervisor:
        slot = register(supervisor.manager)
        stuck, good = await supervisor.join(0), await supervisor.join(1)
        stuck.hold()
        load = task(supervisor.manager.load("m"))
        await soon(lambda: bool(good.prepared))
        stuck.die()
        await load
        await supervisor.publisher.applied()
        stuck = await supervisor.join(0)
        assert phases(stuck, good) == ["ready", "ready"]
        stuck.begin()
        stuck.hold()
        applied = task(supervisor.publisher.applied())
        unload = task(supervisor.manager.unload("m"))
        await soon(lambda: not good.prepared)
        stuck.die()
        await unload
        await applied
        assert slot.active.references == 0
        assert num_closed(registry) == 1


@in_loop
async def test_failed_prepare_fails_load_everywhere() -> None:
    registry = FakeRegistry()
    async with supervising(make_manager(registry)) as supervisor:
        slot = register(supervisor.manager)
        good, bad = await supervisor.join(0), await supervisor.join(1)
        bad.fails = 1
        with pytest.raises(ModelFailed, match="no engine here"):
            await supervisor.manager.load("m")
        await supervisor.publisher.applied()
        assert phases(good, bad) == ["failed", "failed"]
        await soon(lambda: not good.prepared)
        assert len(sent(good, Abandon)) == 1
        assert supervisor.manager.residency.ledger.versions == []
        await soon(lambda: num_closed(registry) == 1)
        await loaded(supervisor, good, bad)
        assert slot.loads == 1


@in_loop
async def test_new_worker_gets_models_before_it_serves() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager)
        register(supervisor.manager, "lazy", load="lazy")
        await loaded(supervisor)
        worker = await supervisor.join(is_held=True)
        await soon(lambda: len(worker.inbox) == 3)
        await settle()
        assert [type(each) for each in worker.inbox] == [ModelChanged, ModelChanged, Prepare]
        worker.allow(3)
        await soon(lambda: worker.serves)
        assert phases(worker) == ["ready"]
        assert worker.prepared == {slot.active.serving_id}
        assert worker.state("lazy").waits_for_load


@in_loop
async def test_worker_that_connects_within_load_is_awaited() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager)
        first = await supervisor.join(0)
        first.hold()
        load = task(supervisor.manager.load("m"))
        await soon(lambda: len(first.inbox) == 2)
        second = await supervisor.join(1, is_held=True)
        first.allow()
        await settle()
        assert slot.state is Phase.LOADING
        second.allow()
        await load
        await supervisor.publisher.applied()
        assert phases(first, second) == ["ready", "ready"]


@in_loop
async def test_worker_without_engine_gets_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frameworks.models.replicas.shared_engine.delay_after", lambda failures: 0.001 * failures)
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        register(supervisor.manager)
        await loaded(supervisor)
        worker = await supervisor.join(is_held=True)
        worker.fails = 2
        worker.allow()
        await soon(lambda: worker.serves)
        await soon(lambda: phases(worker) == ["ready"])
        shown = [each.model.versions[0].state for each in sent(worker, ModelChanged)]
        assert shown[0] == "loading"
        assert "failed" in shown


@in_loop
async def test_request_of_worker_loads_model() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager, load="lazy")
        one, other = await supervisor.join(0), await supervisor.join(1)
        serving = await one.ask()
        assert serving == slot.active.serving_id
        assert phases(one, other) == ["ready", "ready"]
        await soon(lambda: slot.active.references == 1)
        one.end(serving)
        await soon(lambda: slot.active.references == 0)
        await supervisor.manager.unload("m")
        await supervisor.publisher.applied()
        assert await one.ask() is None
        assert await other.ask() is None


@in_loop
async def test_request_is_answered_when_worker_has_applied_load() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager, load="lazy")
        worker = await supervisor.join()
        worker.hold()
        request = task(worker.link.ask(lambda number: LoadForRequest(number, "m", "1")))
        await soon(lambda: len(worker.inbox) == 2)
        worker.allow(2)
        worker.hold()
        await soon(lambda: slot.state is Phase.READY)
        await soon(lambda: bool(worker.inbox))
        await settle()
        assert not request.done()
        assert slot.active.references == 1
        worker.allow()
        await request
        assert phases(worker) == ["ready"]
        assert slot.active.references == 0


@in_loop
async def test_load_for_request_of_lost_worker_is_released() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager, load="lazy")
        worker, other = await supervisor.join(0), await supervisor.join(1)
        other.hold()
        request = task(worker.ask())
        await soon(lambda: slot.active.references == 1)
        worker.die()
        with contextlib.suppress(ChannelLost):
            await request
        other.allow()
        await soon(lambda: slot.state is Phase.READY)
        await soon(lambda: slot.active.references == 0)


@in_loop
async def test_version_in_use_elsewhere_is_not_evicted_first() -> None:
    registry = SizedRegistry()
    async with supervising(make_manager(registry, max_model_bytes=2 * GIB)) as supervisor:
        slots = {name: register(supervisor.manager, name, load="lazy") for name in "abc"}
        worker = await supervisor.join()
        used, idle = await worker.ask("a"), await worker.ask("b")
        assert used is not None
        assert idle is not None
        worker.end(idle)
        await soon(lambda: not slots["b"].active.is_in_use)
        assert slots["a"].active.is_in_use
        assert await worker.ask("c") is not None
        assert [slots[name].state for name in "abc"] == [Phase.READY, Phase.REGISTERED, Phase.READY]


@in_loop
async def test_new_files_replace_load_that_workers_drain(tmp_path: Path) -> None:
    registry = SizedRegistry()
    async with supervising(make_manager(registry, max_model_bytes=9 * GIB)) as supervisor:
        path = make_versions(tmp_path, 1)
        slot = register(supervisor.manager, file=str(path))
        worker = await supervisor.join()
        await loaded(supervisor, worker)
        old = worker.begin()
        assert old is not None
        refresh = task(supervisor.manager.refresh("m", frozenset({"1"})))
        await soon(lambda: slot.active.serving_id not in (0, old))
        await soon(lambda: worker.state().serving == slot.active.serving_id)
        assert worker.begin() == slot.active.serving_id
        assert num_closed(registry) == 0
        worker.end(old)
        await refresh
        assert num_closed(registry) == 1
        assert worker.prepared == {slot.active.serving_id}


@in_loop
async def test_removed_model_is_removed_everywhere() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        register(supervisor.manager)
        worker = await supervisor.join()
        await loaded(supervisor, worker)
        await supervisor.manager.remove("m")
        register(supervisor.manager, max_batch_size=2)
        await supervisor.publisher.applied()
        assert len(sent(worker, ModelRemoved)) == 1
        assert phases(worker) == ["registered"]


@in_loop
async def test_counts_of_workers_are_added() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        slot = register(supervisor.manager)
        one, other = await supervisor.join(0), await supervisor.join(1)
        for worker in (one, other):
            worker.link.send(LocalCounts("m", "1", BatchDeltas(sizes={1: 2})))
        one.link.send(LocalCounts("unknown", "1", BatchDeltas(sizes={1: 2})))
        await soon(lambda: slot.batches.sizes == {1: 4})


@in_loop
async def test_poisonous_request_is_told_to_all_others() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        one, other = await supervisor.join(0), await supervisor.join(1)
        one.link.send(Poisonous("m", b"digest"))
        await soon(lambda: bool(sent(other, Poisonous)))
        late = await supervisor.join(2)
        assert [len(sent(each, Poisonous)) for each in (one, other, late)] == [0, 1, 1]


@in_loop
async def test_connect_to_unknown_load_fails() -> None:
    async with supervising(make_manager(FakeRegistry())) as supervisor:
        worker = await supervisor.join()
        with pytest.raises(ModelFailed, match="unloaded"):
            await worker.link.ask(lambda number: Connect(number, 99, 0))
