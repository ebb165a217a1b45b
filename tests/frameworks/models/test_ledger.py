"""Who leaves for whom, and what the ledger says of it."""

import asyncio

import pytest
from structlog.testing import capture_logs

from frameworks.errors import ModelFailed, OutOfMemory
from tests.frameworks.models.lending import Clock, asked, check_settled, die, error_of, kill, lazy, states, yard
from tests.support.batch_models import Gate
from tests.support.fake_probe import GIB
from tests.support.loops import in_loop, soon, task
from tests.support.managing import permit, register


class TestEviction:
    @in_loop
    async def test_the_least_recently_used_leaves(self) -> None:
        async with yard() as (registry, manager):
            for name in "aba":
                await asked(manager, name)
            assert await asked(manager, "c") == "1"
            assert states(manager) == {"a": "ready", "b": "registered", "c": "ready"}
            assert registry.of["b"].is_closed
            assert manager.residency.ledger.evictions == {"b": 1}
            assert await asked(manager, "b") == "1"
            assert states(manager) == {"a": "registered", "b": "ready", "c": "ready"}

    @in_loop
    async def test_a_large_one_sends_out_as_many_as_it_must(self) -> None:
        async with yard("abcde", room=4) as (registry, manager):
            registry.sizes["e"] = 3 * GIB
            for name in "abcd":
                await asked(manager, name)
            await asked(manager, "e")
            assert [name for name, state in states(manager).items() if state == "ready"] == ["d", "e"]

    @in_loop
    async def test_a_busy_one_answers_all_who_have_come_and_those_after_them_wait(self) -> None:
        gate = Gate()
        async with yard("ab", room=1, behaviour=lambda x: gate() if x == [7] else None) as (registry, manager):
            before = [task(asked(manager, "a", 7)), *(task(asked(manager, "a", x)) for x in (1, 2, 3))]
            await soon(gate.arrived.is_set)
            other = task(asked(manager, "b"))
            await soon(lambda: states(manager)["a"] == "draining")
            late = task(asked(manager, "a", 8))
            await asyncio.sleep(0.02)
            assert not registry.of["a"].is_closed
            assert not other.done()
            first = registry.of["a"]
            gate.open()
            assert await asyncio.gather(*before, other, late) == ["1"] * 6
            assert (registry.loads, [8] in first.executed) == (["a", "b", "a"], False)

    @in_loop
    async def test_what_was_loaded_for_a_request_serves_it_before_it_leaves(self) -> None:
        async with yard("abcd", room=1) as (registry, manager):
            assert await asyncio.gather(*(asked(manager, name) for name in "abcd")) == ["1"] * 4
            assert sorted(registry.loads) == ["a", "b", "c", "d"]
            assert [model.executed for model in registry.made] == [[[1]]] * 4

    @in_loop
    async def test_it_stays_until_the_request_that_it_was_loaded_for_has_come_back_to_it(self) -> None:
        async with yard("ab", room=1) as (_, manager):
            version = manager.slot("a").active
            with permit() as held:
                await manager.wait_for(version, held)
                other, order = task(asked(manager, "b")), task(manager.unload("a"))
                await asyncio.sleep(0.05)
                assert not other.done()
                assert version.enter(held, version.spec_for(held))
            await asyncio.gather(other, order)

    @in_loop
    async def test_a_dead_one_that_is_loaded_anew_and_one_that_wants_its_room_do_not_wait_for_each_other(self) -> None:
        async with yard("ab", room=1, behaviour=die) as (_, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = clock
            await asked(manager, "a")
            await kill(manager, "a")
            with pytest.raises(ModelFailed):
                await asked(manager, "a")
            clock.now_s += 1
            async with version.lock:
                again = task(asked(manager, "a"))
                await asyncio.sleep(0.01)
                other = task(asked(manager, "b"))
                await asyncio.sleep(0.02)
            async with asyncio.timeout(5):
                await asyncio.gather(again, other)

    @in_loop
    async def test_where_the_working_set_does_not_fit_each_load_serves_its_whole_queue(self) -> None:
        async with yard("ab", room=1) as (registry, manager):
            requests = [asked(manager, "ab"[i % 2], i) for i in range(40)]
            assert await asyncio.gather(*requests) == ["1"] * 40
            assert sorted(registry.loads) == ["a", "b"]

    @in_loop
    async def test_who_waits_for_room_has_it_as_soon_as_somebody_is_idle(self) -> None:
        gate = Gate()
        async with yard("ab", room=1, behaviour=lambda x: gate() if x == [7] else None) as (_, manager):
            busy = task(asked(manager, "a", 7))
            await soon(gate.arrived.is_set)
            manager.slot("a").active.load_s = 1000.0
            other = task(asked(manager, "b"))
            await asyncio.sleep(0.02)
            assert states(manager) == {"a": "ready", "b": "loading"}
            more = task(asked(manager, "a"))  # meanwhile it takes others
            gate.open()
            await asyncio.gather(busy, more, other)

    @in_loop
    async def test_who_waits_for_room_hears_of_one_that_does_not_leave_after_all(self) -> None:
        gate = Gate()
        async with yard("ab", room=1, behaviour=lambda x: gate() if x == [7] else None) as (_, manager):
            busy = task(asked(manager, "a", 7))
            await soon(gate.arrived.is_set)
            order = task(manager.unload("a"))
            await soon(lambda: states(manager)["a"] == "draining")
            other = task(asked(manager, "b"))
            await soon(lambda: states(manager)["b"] == "loading")
            await asyncio.sleep(0.02)
            order.cancel()
            await asyncio.wait([order])
            gate.open()
            assert [*await asyncio.gather(busy, other)] == ["1", "1"]

    @in_loop
    async def test_the_pinned_stay_whatever_is_asked_for(self) -> None:
        async with yard("b", room=1) as (_, manager):
            lazy(manager, "a", pinned=True)
            await asked(manager, "a")
            with pytest.raises(OutOfMemory, match=r'"b".* needs 1 GiB; .*unload or unpin'):
                await asked(manager, "b")
            with pytest.raises(OutOfMemory, match="is tried again in"):
                await asked(manager, "b")
            assert states(manager) == {"a": "ready", "b": "failed"}
            await manager.unload("a")
            await manager.load("b")

    @pytest.mark.parametrize("pinned", [False, True])
    @in_loop
    async def test_a_dead_one_makes_room(self, pinned: bool) -> None:
        async with yard("bc", behaviour=die) as (_, manager):
            lazy(manager, "a", pinned=pinned)
            await asked(manager, "a")
            await asked(manager, "b")
            await kill(manager, "a")
            await asked(manager, "c")
            assert states(manager) == {"a": "registered", "b": "ready", "c": "ready"}

    @in_loop
    async def test_start_up_passes_over_what_has_no_room(self) -> None:
        async with yard("", room=2) as (registry, manager):
            for name in "abc":
                register(manager, name)
            registry.sizes["b"] = 2 * GIB
            with capture_logs() as logs:
                await manager.load_registered()
            assert states(manager) == {"a": "ready", "b": "registered", "c": "ready"}
            assert [slot.is_awaited for slot in manager.slots] == [False] * 3
            [warning] = [each for each in logs if each["log_level"] == "warning"]
            assert (warning["event"], warning["model"]) == ("model is not loaded at start-up", "b")
            assert "needs 2 GiB" in warning["reason"]
            assert await asked(manager, "b") == "1"
            assert states(manager) == {"a": "registered", "b": "ready", "c": "registered"}


class TestMeasuring:
    @in_loop
    async def test_what_is_measured_stands_in_the_ledger(self) -> None:
        async with yard("a", room=4) as (registry, manager):
            registry.sizes["a"], registry.estimates["a"] = 3 * GIB, GIB
            await asked(manager, "a")
            assert manager.slot("a").memory_bytes == manager.residency.ledger.budget.used("cpu") == 3 * GIB
            registry.estimates["a"] = 9 * GIB
            await manager.unload("a")
            await manager.load("a")  # by the measure of the last time

    @in_loop
    async def test_more_than_was_thought_makes_others_leave(self) -> None:
        async with yard("abc", room=3) as (registry, manager):
            await asked(manager, "a")
            await asked(manager, "b")
            registry.sizes["c"], registry.estimates["c"] = 2 * GIB, GIB
            await asked(manager, "c")
            assert states(manager) == {"a": "registered", "b": "ready", "c": "ready"}
            assert registry.loads == ["a", "b", "c"]

    @in_loop
    async def test_where_nobody_may_leave_yet_it_is_loaded_again_when_there_is_room(self) -> None:
        gate = Gate()
        async with yard("ab", room=2, behaviour=lambda x: gate() if x == [7] else None) as (registry, manager):
            busy = task(asked(manager, "a", 7))
            await soon(gate.arrived.is_set)
            manager.slot("a").active.load_s = 1000.0
            registry.sizes["b"], registry.estimates["b"] = 2 * GIB, GIB
            other = task(asked(manager, "b"))
            await soon(lambda: registry.loads == ["a", "b"] and registry.of["b"].is_closed)
            gate.open()
            await asyncio.gather(busy, other)
            assert registry.loads == ["a", "b", "b"]

    @in_loop
    async def test_more_than_there_is_is_out_of_memory_and_an_order_tries_by_the_estimate(self) -> None:
        async with yard("a", room=2) as (registry, manager):
            registry.sizes["a"], registry.estimates["a"] = 3 * GIB, GIB
            assert isinstance(await error_of(asked(manager, "a")), OutOfMemory)
            assert (registry.loads, registry.are_all_closed) == (["a"], True)
            check_settled(manager)
            registry.sizes["a"] = GIB
            await manager.load("a")
            assert manager.slot("a").memory_bytes == GIB
