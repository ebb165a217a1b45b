"""Orders to leave, and the end of the house, while models come and go: nobody hangs, nothing stays."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from frameworks.errors import Draining, ModelNotFound, ModelUnavailable, ModelUnloaded
from frameworks.manager import MLFrameworkManager
from frameworks.models.slot import ModelState
from frameworks.settings import VersionPolicy
from tests.frameworks.models.lending import Yard, asked, check_settled, error_of, lazy, states, versions
from tests.support.batch_models import Gate
from tests.support.fake_probe import GIB
from tests.support.loops import in_loop, soon, task
from tests.support.managing import entry, make_manager, permit, permitted, register


async def check_ended(registry: Yard, manager: MLFrameworkManager) -> None:
    """What is to be after the house was left; a thread may still bring what nobody wants any more."""
    await soon(lambda: registry.are_all_closed)
    room = manager.residency.ledger
    assert (room.budget.used("cpu"), room.versions) == (0, [])
    assert set(states(manager).values()) <= {"unloaded"}
    for slot in manager.slots:
        assert slot.requests.inflight == 0


class TestOrders:
    @in_loop
    async def test_an_unload_lets_the_load_end_and_those_who_waited_be_served(self) -> None:
        registry = Yard()
        async with make_manager(registry) as manager:
            lazy(manager, "a")
            registry.gates["a"] = Gate()
            requests = [task(asked(manager, "a", x)) for x in range(3)]
            await soon(registry.gates["a"].arrived.is_set)
            order = task(manager.unload("a"))
            await asyncio.sleep(0.01)
            registry.gates["a"].open()
            assert await asyncio.gather(*requests) == ["1"] * 3
            await order
            assert states(manager) == {"a": "unloaded"}
            with pytest.raises(ModelUnloaded):
                await asked(manager, "a")
            check_settled(manager)

    @in_loop
    async def test_who_waits_while_a_model_makes_room_is_told_that_it_was_ordered_out(self) -> None:
        gate = Gate()
        registry = Yard(lambda x: gate() if x == [7] else None)
        async with make_manager(registry, max_model_bytes=GIB) as manager:
            lazy(manager, "a", "b")
            busy = task(asked(manager, "a", 7))
            await soon(gate.arrived.is_set)
            other = task(asked(manager, "b"))
            await soon(lambda: states(manager)["a"] == "draining")
            late = task(error_of(asked(manager, "a")))
            await asyncio.sleep(0.01)
            order = task(manager.unload("a"))
            await asyncio.sleep(0.01)
            gate.open()
            await asyncio.gather(busy, other, order)
            assert isinstance(await late, ModelUnloaded)
            assert states(manager) == {"a": "unloaded", "b": "ready"}
            check_settled(manager)

    @in_loop
    async def test_an_order_s_word_stands_over_an_eviction_s(self) -> None:
        registry = Yard()
        async with make_manager(registry) as manager:
            [slot] = lazy(manager, "a")
            await asked(manager, "a")
            # Both want the version's lock at once, the order first.
            async with slot.active.lock:
                order = task(manager.unload("a"))
                await asyncio.sleep(0.01)
                eviction = task(manager.residency._evict(slot.active))
                await asyncio.sleep(0.01)
            await asyncio.gather(order, eviction)
            assert states(manager) == {"a": "unloaded"}
            check_settled(manager)

    @in_loop
    async def test_an_order_in_after_an_order_out_is_not_told_what_requests_are(self) -> None:
        registry = Yard()
        async with make_manager(registry) as manager:
            [slot] = lazy(manager, "a")
            async with slot.active.lock:
                out = task(manager.residency.unload(slot.active))
                await asyncio.sleep(0.01)
                request = task(error_of(asked(manager, "a")))  # its load stands behind the order out
                await asyncio.sleep(0.01)
                order = task(manager.load("a"))
                await asyncio.sleep(0.01)
            await asyncio.gather(out, order)
            assert isinstance(await request, ModelUnloaded)
            assert states(manager) == {"a": "ready"}
            check_settled(manager)

    @in_loop
    async def test_removing_serves_those_who_wait_for_the_load_and_refuses_the_next(self) -> None:
        registry = Yard()
        async with make_manager(registry) as manager:
            lazy(manager, "a")
            registry.gates["a"] = Gate()
            request = task(asked(manager, "a"))
            await soon(registry.gates["a"].arrived.is_set)
            removal = task(manager.remove("a"))
            await asyncio.sleep(0.01)
            registry.gates["a"].open()
            assert await request == "1"
            await removal
            with pytest.raises(ModelNotFound):
                await asked(manager, "a")
            assert manager.residency.ledger.versions == []

    @in_loop
    async def test_who_comes_while_a_model_is_removed_is_refused_at_once(self) -> None:
        registry = Yard()
        async with make_manager(registry) as manager:
            [slot] = lazy(manager, "a")
            await asked(manager, "a")
            with permitted(slot):
                removal = task(manager.remove("a"))
                await soon(lambda: slot.state is ModelState.DRAINING)
                with pytest.raises(ModelUnloaded):
                    await asked(manager, "a")
            await removal
            with pytest.raises(ModelNotFound):
                await asked(manager, "a")

    @pytest.mark.parametrize("policy", ["latest", "all"])
    @in_loop
    async def test_what_was_added_and_failed_leaves_nothing_behind(self, policy: VersionPolicy, tmp_path: Path) -> None:
        registry = Yard()
        async with make_manager(registry) as manager:
            registry.broken.add("m/2")
            wanted = entry(version_policy=policy)
            assert await error_of(manager.add("fake", wanted, versions(tmp_path, 1, 2))) is not None
            assert manager.slots == []
            assert (registry.are_all_closed, manager.residency.ledger.versions) == (True, [])

    @in_loop
    async def test_an_unload_that_is_cancelled_at_any_time_leaves_the_ledger_right(self) -> None:
        for rounds in range(12):
            registry = Yard()
            async with make_manager(registry) as manager:
                lazy(manager, "a")
                await asked(manager, "a")
                order = task(manager.unload("a"))
                for _ in range(rounds):
                    await asyncio.sleep(0)
                order.cancel()
                await asyncio.wait([order])
                check_settled(manager)
                await error_of(asked(manager, "a"))
                check_settled(manager)
            await check_ended(registry, manager)

    @in_loop
    async def test_a_request_that_leaves_at_any_time_leaves_nothing_behind(self) -> None:
        for rounds in range(0, 30, 2):
            registry = Yard()
            async with make_manager(registry, max_model_bytes=GIB) as manager:
                lazy(manager, "a", "b")
                await asked(manager, "b")
                request = task(asked(manager, "a"))
                for _ in range(rounds):
                    await asyncio.sleep(0.0002)
                request.cancel()
                await asyncio.wait([request])
                await asked(manager, "b")
                await soon(lambda: "loading" not in states(manager).values())
                check_settled(manager)
            await check_ended(registry, manager)


class TestTheEndOfTheHouse:
    @in_loop
    async def test_those_who_wait_for_a_load_are_served_if_there_is_time(self) -> None:
        registry = Yard()
        async with make_manager(registry, max_model_bytes=GIB) as manager:
            lazy(manager, "a", "b")
            await asked(manager, "b")
            registry.gates["a"] = Gate()
            requests = [task(asked(manager, "a", x)) for x in range(3)]
            await soon(registry.gates["a"].arrived.is_set)
            asyncio.get_running_loop().call_later(0.02, registry.gates["a"].open)
        assert await asyncio.gather(*requests) == ["1"] * 3
        await check_ended(registry, manager)

    @in_loop
    async def test_past_the_drain_s_time_they_are_told(self) -> None:
        registry = Yard()
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                lazy(manager, "a", "b")
                registry.gates["a"] = Gate()
                requests = [task(error_of(asked(manager, "a", x))) for x in range(3)]
                await soon(registry.gates["a"].arrived.is_set)
            errors = await asyncio.wait_for(asyncio.gather(*requests), 5)
            assert [type(error) for error in errors] == [Draining] * 3
            with pytest.raises(ModelUnavailable):
                await asked(manager, "b")
        registry.gates["a"].open()
        await check_ended(registry, manager)

    @in_loop
    async def test_who_waits_for_room_that_does_not_come_is_told(self) -> None:
        gate = Gate()
        registry = Yard(lambda x: gate() if x == [7] else None)
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05, max_model_bytes=GIB) as manager:
                lazy(manager, "a", "b")
                busy = task(error_of(asked(manager, "a", 7)))
                await soon(gate.arrived.is_set)
                other = task(error_of(asked(manager, "b")))
                late = task(error_of(asked(manager, "a")))
                await soon(lambda: states(manager)["a"] == "draining")
            errors = await asyncio.wait_for(asyncio.gather(busy, other, late), 5)
        assert all(isinstance(error, ModelUnavailable) for error in errors), errors
        gate.open()
        await check_ended(registry, manager)

    @in_loop
    async def test_a_version_that_was_replaced_and_still_answers_is_not_forgotten(self, tmp_path: Path) -> None:
        gate = Gate()
        registry = Yard(lambda x: gate() if x == [7] else None)
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                slot = register(manager, file=str(versions(tmp_path, 1)))
                await manager.load("m")
                old, before = slot.active, task(error_of(asked(manager, x=7)))
                await soon(gate.arrived.is_set)
                refresh = task(error_of(manager.refresh("m", frozenset("1"))))
                await soon(lambda: slot.active is not old)
            assert isinstance(await asyncio.wait_for(before, 5), Draining)
            await asyncio.wait_for(asyncio.wait([refresh]), 5)
        gate.open()
        await check_ended(registry, manager)

    @in_loop
    async def test_a_version_that_comes_to_be_while_the_house_closes_leaves_too(self, tmp_path: Path) -> None:
        registry = Yard()
        async with make_manager(registry) as manager:
            register(manager, file=str(versions(tmp_path, 1)))
            await manager.load("m")
            registry.gates["m/1"] = Gate()
            refresh = task(error_of(manager.refresh("m", frozenset("1"))))
            await soon(registry.gates["m/1"].arrived.is_set)
            asyncio.get_running_loop().call_later(0.02, registry.gates["m/1"].open)
        await asyncio.wait_for(refresh, 5)
        assert len(registry.made) == 2
        await check_ended(registry, manager)

    @in_loop
    async def test_a_swap_on_its_way_is_given_up(self, tmp_path: Path) -> None:
        registry = Yard()
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                register(manager, file=str(versions(tmp_path, 1, 2)))
                await manager.load("m", "1")
                registry.gates["m/2"] = Gate()
                swap = task(error_of(manager.load("m", "2")))
                await soon(registry.gates["m/2"].arrived.is_set)
            assert isinstance(await asyncio.wait_for(swap, 5), Draining)
        registry.gates["m/2"].open()
        await check_ended(registry, manager)

    @in_loop
    async def test_an_order_that_still_waits_for_an_answer_ends(self) -> None:
        registry = Yard()
        with permit() as held, capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                [slot] = lazy(manager, "a")
                await asked(manager, "a")
                spec = slot.active.spec_for(held)
                assert slot.active.enter(held, spec)  # its answer does not leave
                order = task(error_of(manager.unload("a")))
                await soon(lambda: slot.state is ModelState.DRAINING)
            held.release_model()
            assert await asyncio.wait_for(order, 5) is None
        await check_ended(registry, manager)
