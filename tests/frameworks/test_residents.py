"""Models that are loaded when they are asked for, and that leave for others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.errors import InvalidModel, ModelFailed, ModelLoading, OutOfMemory
from frameworks.manager import MLFrameworkManager
from tests.frameworks.batch_models import Gate
from tests.frameworks.fake_probe import GIB
from tests.frameworks.lending import Clock, Yard, asked, check_settled, error_of, lazy, states
from tests.frameworks.loops import in_loop, soon, task
from tests.frameworks.managing import make_manager, register


def die(x: list[object]) -> None:
    if x == ["die"]:
        raise SystemExit


@asynccontextmanager
async def yard(
    names: str = "abc", room: int = 2, behaviour: Any = None, **settings: Any
) -> AsyncIterator[tuple[Yard, MLFrameworkManager]]:
    """Lazy models of a GiB each, and room for so many of them. In the end everything is as it should be."""
    registry = Yard(behaviour)
    async with make_manager(registry, max_model_bytes=room * GIB) as manager:
        lazy(manager, *names, **settings)
        yield registry, manager
        check_settled(manager)
    assert registry.are_all_closed
    assert manager.residents.room.budget.used("cpu") == 0
    assert all(count == 1 for count in registry.most_at_once.values())


async def kill(manager: MLFrameworkManager, name: str) -> None:
    with capture_logs(), pytest.raises(ModelFailed):
        await asked(manager, name, "die")


class TestLoadingOnDemand:
    @in_loop
    async def test_a_lazy_model_is_loaded_when_it_is_first_asked_for(self) -> None:
        async with yard("a") as (registry, manager):
            await manager.load_registered()
            assert (states(manager), registry.loads) == ({"a": "registered"}, [])
            registry.gates["a"] = Gate()
            request = task(asked(manager, "a"))
            await soon(registry.gates["a"].arrived.is_set)
            assert states(manager) == {"a": "loading"}
            registry.gates["a"].open()
            await request
            assert states(manager) == {"a": "ready"}

    @in_loop
    async def test_many_who_ask_at_once_load_it_once(self) -> None:
        async with yard("a") as (registry, manager):
            await asyncio.gather(*(asked(manager, "a", x) for x in range(20)), manager.load("a"), manager.load("a"))
            assert registry.loads == ["a"]

    @in_loop
    async def test_one_who_leaves_harms_nobody_and_the_load_goes_on_for_none(self) -> None:
        async with yard("a") as (registry, manager):
            registry.gates["a"] = Gate()
            requests = [task(asked(manager, "a", x)) for x in range(3)]
            await soon(registry.gates["a"].arrived.is_set)
            requests[0].cancel()
            await asyncio.wait(requests[:1])
            assert manager.slot("a").active.visitors == 2
            requests[1].cancel()
            registry.gates["a"].open()
            assert await requests[2] == "1"
            await manager.unload("a")
            await manager.load("a")
            registry.gates["a"] = Gate()
            await manager.unload("a")
            order = task(manager.load("a"))
            await soon(registry.gates["a"].arrived.is_set)
            order.cancel()
            await asyncio.wait([order])
            registry.gates["a"].open()
            await soon(lambda: states(manager) == {"a": "ready"})

    @in_loop
    async def test_who_waits_waits_no_longer_than_it_may(self) -> None:
        async with yard("a") as (registry, manager):
            registry.gates["a"] = Gate()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asked(manager, "a")
            assert manager.slot("a").active.visitors == 0
            registry.gates["a"].open()
            await soon(lambda: states(manager) == {"a": "ready"})
            assert (await asked(manager, "a"), registry.loads) == ("1", ["a"])

    @in_loop
    async def test_only_a_start_up_model_s_first_load_is_not_waited_for(self) -> None:
        async with yard("", room=1) as (registry, manager):
            for name in "ab":
                register(manager, name)
            with pytest.raises(ModelLoading):
                await asked(manager, "a")
            await manager.load("a")
            await manager.load("b")
            assert states(manager) == {"a": "registered", "b": "ready"}
            assert await asked(manager, "a") == "1"
            assert registry.loads == ["a", "b", "a"]


class TestFailures:
    @in_loop
    async def test_all_who_wait_are_told(self) -> None:
        async with yard("a") as (registry, manager):
            registry.broken.add("a")
            registry.gates["a"] = Gate()
            requests = [task(error_of(asked(manager, "a"))) for _ in range(3)]
            await soon(registry.gates["a"].arrived.is_set)
            registry.gates["a"].open()
            assert {type(error) for error in await asyncio.gather(*requests)} == {InvalidModel}
            assert registry.loads == ["a"]
            assert (states(manager), manager.slot("a").reason) == ({"a": "failed"}, "a is broken")

    @in_loop
    async def test_it_is_tried_again_later_each_time(self) -> None:
        async with yard("a") as (registry, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = clock
            registry.broken.add("a")
            for count, wait_s in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60]):
                assert isinstance(await error_of(asked(manager, "a")), InvalidModel)
                assert len(registry.loads) == count + 1
                clock.now_s += wait_s - 0.1
                with pytest.raises(ModelFailed, match=r"failed: a is broken; it is tried again in 0\.1 s"):
                    await asked(manager, "a")
                assert len(registry.loads) == count + 1
                clock.now_s += 0.1
            registry.broken.clear()
            assert await asked(manager, "a") == "1"
            # What has been well begins anew.
            await manager.unload("a")
            registry.broken.add("a")
            with pytest.raises(InvalidModel):
                await manager.load("a")
            clock.now_s += 1
            assert isinstance(await error_of(asked(manager, "a")), InvalidModel)

    @in_loop
    async def test_an_order_does_not_wait_for_the_next_try(self) -> None:
        async with yard("a") as (registry, manager):
            registry.broken.add("a")
            assert isinstance(await error_of(asked(manager, "a")), InvalidModel)
            registry.broken.clear()
            await manager.load("a")
            assert await asked(manager, "a") == "1"

    @in_loop
    async def test_one_that_has_died_is_loaded_anew_for_who_asks_later(self) -> None:
        async with yard("a", behaviour=die) as (registry, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = clock
            await asked(manager, "a")
            await kill(manager, "a")
            with pytest.raises(ModelFailed, match=r"its device thread ended; it is tried again in 1\.0 s"):
                await asked(manager, "a")
            clock.now_s += 1
            assert await asyncio.gather(*(asked(manager, "a") for _ in range(5))) == ["1"] * 5
            assert registry.loads == ["a", "a"]

    @in_loop
    async def test_an_order_to_leave_one_that_has_died_does_not_wait_for_those_who_ask_for_it(self) -> None:
        async with yard("a", behaviour=die) as (_, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = clock
            await asked(manager, "a")
            await kill(manager, "a")
            with pytest.raises(ModelFailed):
                await asked(manager, "a")
            clock.now_s += 1
            # The request has begun its load, but the order is before it at the version's lock.
            order, request = task(manager.unload("a")), task(error_of(asked(manager, "a")))
            await asyncio.wait([order, request], timeout=5)
            assert order.done()
            assert request.done()


class TestEviction:
    @in_loop
    async def test_the_least_recently_used_leaves(self) -> None:
        async with yard() as (registry, manager):
            for name in "aba":
                await asked(manager, name)
            assert await asked(manager, "c") == "1"
            assert states(manager) == {"a": "ready", "b": "registered", "c": "ready"}
            assert registry.of["b"].is_closed
            assert manager.residents.room.evictions == {"b": 1}
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
            await asyncio.gather(busy, other)

    @in_loop
    async def test_the_pinned_stay_whatever_is_asked_for(self) -> None:
        async with yard("b", room=1) as (_, manager):
            lazy(manager, "a", pinned=True)
            await asked(manager, "a")
            with pytest.raises(OutOfMemory, match=r'"b".* needs 1 GiB and there is no such room: .*unload or unpin'):
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
            assert manager.slot("a").memory_bytes == manager.residents.room.budget.used("cpu") == 3 * GIB
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
