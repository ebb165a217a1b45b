"""Test models that do not fit together: each stays for a minimum time, and operators' loads go first."""

import asyncio

import pytest

from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.load_lock import LoadLock
from tests.frameworks.models.sized_registry import infer, lazy_models, states
from tests.support.batch_models import Gate
from tests.support.clocks import Clock
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon, task
from tests.support.managing import permitted


def set_clock(manager: MLFrameworkManager) -> Clock:
    """Give the ledger and all versions one clock."""
    clock = Clock()
    manager.residency.ledger._clock = clock
    for slot in manager.slots:
        slot.active._clock = slot.active.failures._clock = clock
    return clock


class TestResidency:
    @in_loop
    async def test_idle_model_stays_for_minimum_residency(self) -> None:
        async with lazy_models("ab", capacity_gib=1, min_residency_s=HANGS_AFTER_S) as (registry, manager):
            clock = set_clock(manager)
            await infer(manager, "a")
            clock.now_s += HANGS_AFTER_S / 2
            other = task(infer(manager, "b"))
            await soon(lambda: states(manager)["b"] == "loading")
            await settle()
            # It still answers, which does not extend its time.
            assert await infer(manager, "a") == "1"
            assert registry.loads == ["a"]
            clock.now_s += HANGS_AFTER_S / 2
            pass_time(HANGS_AFTER_S / 2)
            assert await other == "1"
            assert registry.loads == ["a", "b"]

    @in_loop
    async def test_alternating_requests_load_once_per_residency(self) -> None:
        async with lazy_models("ab", capacity_gib=1, min_residency_s=HANGS_AFTER_S) as (registry, manager):
            clock = set_clock(manager)
            await infer(manager, "a")
            for round_number in range(6):
                name = "ba"[round_number % 2]
                other = task(infer(manager, name))
                await soon(lambda name=name: states(manager)[name] == "loading")  # type: ignore[misc]
                await settle()
                assert len(registry.loads) == round_number + 1
                clock.now_s += HANGS_AFTER_S
                pass_time(HANGS_AFTER_S)
                await other
            assert registry.loads == [*"abababa"]

    @in_loop
    async def test_request_waits_no_longer_than_its_deadline(self) -> None:
        async with lazy_models("ab", capacity_gib=1, min_residency_s=HANGS_AFTER_S) as (registry, manager):
            set_clock(manager)
            await infer(manager, "a")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await infer(manager, "b")
            assert manager.slot("b").active.references == 0
            await manager.unload("a")
            # The load that no request waits for any more has gone on.
            await soon(lambda: states(manager) == {"a": "unloaded", "b": "ready"})
            assert registry.loads == ["a", "b"]


class TestOrders:
    @in_loop
    async def test_ordered_load_evicts_idle_model_at_once(self) -> None:
        async with lazy_models("ab", capacity_gib=1, min_residency_s=HANGS_AFTER_S) as (registry, manager):
            set_clock(manager)
            await infer(manager, "a")
            await manager.load("b")
            assert states(manager) == {"a": "registered", "b": "ready"}
            assert registry.loads == ["a", "b"]

    @in_loop
    async def test_order_joins_load_of_request_and_hastens_it(self) -> None:
        async with lazy_models("ab", capacity_gib=1, min_residency_s=HANGS_AFTER_S) as (_, manager):
            set_clock(manager)
            await infer(manager, "a")
            request = task(infer(manager, "b"))
            await soon(lambda: states(manager)["b"] == "loading")
            await settle()
            await manager.load("b")
            assert await request == "1"

    @in_loop
    async def test_ordered_load_goes_before_queued_ones(self) -> None:
        async with lazy_models("abcd", capacity_gib=4) as (registry, manager):
            registry.gates["a"] = Gate()
            requests = [task(infer(manager, "a"))]
            await soon(registry.gates["a"].arrived.is_set)
            for name in "bc":
                requests.append(task(infer(manager, name)))
                await soon(lambda name=name: states(manager)[name] == "loading")  # type: ignore[misc]
            order = task(manager.load("d"))
            await soon(lambda: states(manager)["d"] == "loading")
            registry.gates["a"].open()
            await asyncio.gather(*requests, order)
            assert registry.loads == [*"adbc"]

    @in_loop
    async def test_ordered_load_gets_memory_before_requests(self) -> None:
        async with lazy_models("abc", capacity_gib=1, min_residency_s=HANGS_AFTER_S) as (registry, manager):
            clock = set_clock(manager)
            await infer(manager, "a")
            with permitted(manager.slot("a")):
                manager.slot("a").active.load_s = HANGS_AFTER_S
                request = task(infer(manager, "b"))
                await soon(lambda: states(manager)["b"] == "loading")
                order = task(manager.load("c"))
                await soon(lambda: states(manager)["c"] == "loading")
                await settle()
                assert registry.loads == ["a"]
            await order
            assert registry.loads == ["a", "c"]
            clock.now_s += HANGS_AFTER_S
            pass_time(HANGS_AFTER_S)
            assert await request == "1"
            assert registry.loads == ["a", "c", "b"]


class TestTurns:
    @in_loop
    async def test_turns_pass_in_order_and_survive_cancellation(self) -> None:
        turns, held, order = LoadLock(), asyncio.Event(), []
        urgent: set[int] = set()

        async def wait(number: int) -> None:
            async with turns.acquired(lambda: number in urgent):
                order.append(number)
                await held.wait()

        tasks = [task(wait(number)) for number in range(7)]
        await settle()
        assert order == [0]
        tasks[1].cancel()
        urgent.update({4, 5})
        held.set()
        await asyncio.wait(tasks)
        assert order == [0, 4, 5, 2, 3, 6]

    @in_loop
    async def test_cancelled_holder_passes_its_turn_on(self) -> None:
        turns = LoadLock()

        async def hold() -> None:
            async with turns.acquired(lambda: False):
                await asyncio.sleep(HANGS_AFTER_S)

        first, second, third = (task(hold()) for _ in range(3))
        await settle()
        # The turn is passed to the second in the same round in which that is cancelled.
        first.cancel()
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([first, second])
        assert (first.cancelled(), second.cancelled()) == (True, True)
        third.cancel()
        await asyncio.wait([third])
        async with asyncio.timeout(HANGS_AFTER_S), turns.acquired(lambda: False):
            pass
