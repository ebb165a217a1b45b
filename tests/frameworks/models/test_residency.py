"""Models that are loaded when they are asked for, once for all who ask, and again when that failed."""

import asyncio

import pytest
from structlog.testing import capture_logs

from frameworks.errors import InvalidModel, ModelFailed, ModelLoading, ModelUnloaded
from tests.frameworks.models.lending import Clock, asked, die, error_of, kill, states, yard
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.managing import permit, register


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
            assert manager.slot("a").active.references == 2
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
            assert manager.slot("a").active.references == 0
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
            assert {type(error) for error in await asyncio.gather(*requests)} == {ModelFailed}
            assert registry.loads == ["a"]
            assert (states(manager), manager.slot("a").reason) == ({"a": "failed"}, "a is broken")

    @in_loop
    async def test_it_is_tried_again_later_each_time(self) -> None:
        async with yard("a") as (registry, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = clock
            registry.broken.add("a")
            for count, wait_s in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60]):
                assert isinstance(await error_of(asked(manager, "a")), ModelFailed)
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
            assert isinstance(await error_of(asked(manager, "a")), ModelFailed)

    @in_loop
    async def test_an_order_does_not_wait_for_the_next_try(self) -> None:
        async with yard("a") as (registry, manager):
            registry.broken.add("a")
            assert isinstance(await error_of(asked(manager, "a")), ModelFailed)
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

    @in_loop
    async def test_who_finds_it_dead_while_it_leaves_does_not_hold_up_its_going(self) -> None:
        gate = Gate()

        def hesitate(x: list[object]) -> None:
            if x == ["die"]:
                gate()
            die(x)

        async with yard("a", behaviour=hesitate) as (_, manager):
            version = manager.slot("a").active
            await asked(manager, "a")
            dying = task(error_of(asked(manager, "a", "die")))
            await soon(gate.arrived.is_set)
            with permit() as held, capture_logs():
                assert version.enter(held, version.spec_for(held))
                order = task(manager.unload("a"))
                await soon(lambda: states(manager) == {"a": "draining"})
                gate.open()
                assert isinstance(await dying, ModelFailed)
                with pytest.raises(ModelUnloaded):
                    version.spec_for(held)
                held.release_model()  # what the door does with a request that is refused
                await order
