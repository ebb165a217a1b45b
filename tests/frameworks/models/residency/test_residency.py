"""Test loads on request: one load for all requests, and retries after a failure."""

import asyncio

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel, ModelFailed, ModelLoading, ModelUnloaded
from tests.frameworks.models.sized_registry import die, error_of, infer, kill, lazy_models, states
from tests.support.batch_models import Gate
from tests.support.clocks import Clock
from tests.support.loops import in_loop, soon, task
from tests.support.managing import permit, register


class TestLoadingOnDemand:
    @in_loop
    async def test_first_request_loads_lazy_model(self) -> None:
        async with lazy_models("a") as (registry, manager):
            await manager.load_registered()
            assert (states(manager), registry.loads) == ({"a": "registered"}, [])
            registry.gates["a"] = Gate()
            request = task(infer(manager, "a"))
            await soon(registry.gates["a"].arrived.is_set)
            assert states(manager) == {"a": "loading"}
            registry.gates["a"].open()
            await request
            assert states(manager) == {"a": "ready"}

    @in_loop
    async def test_concurrent_requests_share_one_load(self) -> None:
        async with lazy_models("a") as (registry, manager):
            await asyncio.gather(*(infer(manager, "a", x) for x in range(20)), manager.load("a"), manager.load("a"))
            assert registry.loads == ["a"]

    @in_loop
    async def test_load_continues_when_its_callers_are_cancelled(self) -> None:
        async with lazy_models("a") as (registry, manager):
            registry.gates["a"] = Gate()
            requests = [task(infer(manager, "a", x)) for x in range(3)]
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
    async def test_request_waits_for_load_until_its_timeout(self) -> None:
        async with lazy_models("a") as (registry, manager):
            registry.gates["a"] = Gate()
            request = task(infer(manager, "a"))
            await soon(registry.gates["a"].arrived.is_set)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await request
            assert manager.slot("a").active.references == 0
            registry.gates["a"].open()
            await soon(lambda: states(manager) == {"a": "ready"})
            assert (await infer(manager, "a"), registry.loads) == ("1", ["a"])

    @in_loop
    async def test_requests_wait_except_for_first_startup_load(self) -> None:
        async with lazy_models("", capacity_gib=1) as (registry, manager):
            for name in "ab":
                register(manager, name)
            with pytest.raises(ModelLoading):
                await infer(manager, "a")
            await manager.load("a")
            await manager.load("b")
            assert states(manager) == {"a": "registered", "b": "ready"}
            assert await infer(manager, "a") == "1"
            assert registry.loads == ["a", "b", "a"]


class TestFailures:
    @in_loop
    async def test_failed_load_fails_all_its_requests(self) -> None:
        async with lazy_models("a") as (registry, manager):
            registry.broken.add("a")
            registry.gates["a"] = Gate()
            requests = [task(error_of(infer(manager, "a"))) for _ in range(3)]
            await soon(registry.gates["a"].arrived.is_set)
            registry.gates["a"].open()
            assert {type(error) for error in await asyncio.gather(*requests)} == {ModelFailed}
            assert registry.loads == ["a"]
            assert (states(manager), manager.slot("a").reason) == ({"a": "failed"}, "a is broken")

    @in_loop
    async def test_crash_in_load_fails_requests_with_retry(self) -> None:
        async with lazy_models("a") as (registry, manager):
            version = manager.slot("a").active
            version._clock = version.failures._clock = Clock()
            registry.crashing.add("a")
            with pytest.raises(ModelFailed, match=r'model "a".* failed to load: its process ended') as caught:
                await infer(manager, "a")
            assert caught.value.retry_after_s == 1.0

    @in_loop
    async def test_retries_after_failures_have_growing_delays(self) -> None:
        async with lazy_models("a") as (registry, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = version.failures._clock = clock
            registry.broken.add("a")
            for count, wait_s in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60]):
                assert isinstance(await error_of(infer(manager, "a")), ModelFailed)
                assert len(registry.loads) == count + 1
                clock.now_s += wait_s - 0.1
                with pytest.raises(ModelFailed, match=r"failed: a is broken; its load is retried in 0\.1 s") as caught:
                    await infer(manager, "a")
                assert caught.value.retry_after_s == pytest.approx(0.1)
                assert len(registry.loads) == count + 1
                clock.now_s += 0.1
            registry.broken.clear()
            assert await infer(manager, "a") == "1"
            # A success resets the delay of the retries.
            await manager.unload("a")
            registry.broken.add("a")
            with pytest.raises(InvalidModel):
                await manager.load("a")
            clock.now_s += 1
            assert isinstance(await error_of(infer(manager, "a")), ModelFailed)

    @in_loop
    async def test_load_command_ignores_retry_delay(self) -> None:
        async with lazy_models("a") as (registry, manager):
            registry.broken.add("a")
            assert isinstance(await error_of(infer(manager, "a")), ModelFailed)
            registry.broken.clear()
            await manager.load("a")
            assert await infer(manager, "a") == "1"

    @in_loop
    async def test_dead_model_is_reloaded_by_later_requests(self) -> None:
        async with lazy_models("a", behaviour=die) as (registry, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = version.failures._clock = clock
            await infer(manager, "a")
            await kill(manager, "a")
            with pytest.raises(ModelFailed, match=r"its device thread ended; its load is retried in 1\.0 s"):
                await infer(manager, "a")
            clock.now_s += 1
            assert await asyncio.gather(*(infer(manager, "a") for _ in range(5))) == ["1"] * 5
            assert registry.loads == ["a", "a"]

    @in_loop
    async def test_unload_of_dead_model_ignores_waiting_requests(self) -> None:
        async with lazy_models("a", behaviour=die) as (_, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = version.failures._clock = clock
            await infer(manager, "a")
            await kill(manager, "a")
            with pytest.raises(ModelFailed):
                await infer(manager, "a")
            clock.now_s += 1
            # The request has started a load, but the unload command is first at the version's lock.
            order, request = task(manager.unload("a")), task(error_of(infer(manager, "a")))
            await asyncio.wait([order, request], timeout=60)
            assert order.done()
            assert request.done()

    @in_loop
    async def test_draining_dead_model_is_not_blocked_by_requests(self) -> None:
        gate = Gate()

        def hesitate(x: list[object]) -> None:
            if x == ["die"]:
                gate()
            die(x)

        async with lazy_models("a", behaviour=hesitate) as (_, manager):
            version = manager.slot("a").active
            await infer(manager, "a")
            dying = task(error_of(infer(manager, "a", "die")))
            await soon(gate.arrived.is_set)
            with permit() as held, capture_logs():
                assert version.acquire(held, version.spec_for(held))
                order = task(manager.unload("a"))
                await soon(lambda: states(manager) == {"a": "draining"})
                gate.open()
                assert isinstance(await dying, ModelFailed)
                with pytest.raises(ModelUnloaded):
                    version.spec_for(held)
                held.release_version()  # as the pipeline does for a refused request
                await order
