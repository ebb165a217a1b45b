"""Test requests to models as parts of another request: references, places, tenants, cancellation, errors."""

import asyncio
from typing import Any

import pytest

from frameworks.core.errors import (
    Draining,
    InvalidInput,
    ModelFailed,
    ModelUnloaded,
    OutOfMemory,
    Overloaded,
    RoundhouseError,
)
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.subrequests import SubRequests
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.types import ModelSpec, TensorBatch
from tests.frameworks.models.sized_registry import lazy_models
from tests.support.batch_models import FakeRegistry, Gate, numbers
from tests.support.loops import in_loop, soon, task
from tests.support.managing import make_manager, permit, register, serving


def _doubled(x: object) -> Any:
    def make(spec: ModelSpec) -> TensorBatch:
        assert spec.framework == "fake"
        return numbers(x)

    return make


async def _ask(manager: MLFrameworkManager, whole: Permit, name: str = "m", x: object = 1, **given: Any) -> Any:
    parts = given.pop("parts", None) or SubRequests(manager)
    answer = await parts.answer(Run(whole, Timings(), 5), name, _doubled(x), 'step "twice"', **given)
    assert isinstance(answer, dict)
    return answer["y"]


async def _sent(manager: MLFrameworkManager, whole: Permit, **given: Any) -> list["asyncio.Task[Any]"]:
    """Ask until a gated model has both batches that its worker takes at once."""
    slot = manager.slot("m")
    requests = []
    for x in range(2):
        requests.append(task(_ask(manager, whole, x=x, **given)))
        await soon(lambda x=x: (slot.requests.inflight, slot.requests.waiting) == (x + 1, 0))  # type: ignore[misc]
    return requests


class TestSubRequests:
    @in_loop
    async def test_answer_releases_reference_and_places(self) -> None:
        async with serving(FakeRegistry()) as manager:
            limit = RequestLimit("the server", None, None)
            whole, slot = Permit(limit, Tenant("a")), manager.slot("m")
            assert await _ask(manager, whole, x=3) == [6]
            assert (slot.active.references, slot.requests.inflight, slot.requests.waiting) == (0, 0, 0)
            assert (limit.inflight, limit.waiting) == (1, 0)
            whole.release()

    @in_loop
    async def test_part_has_tenant_and_priority_of_whole(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(lambda _: gate())) as manager:
            with permit(Permit(RequestLimit("the server", None, None), Tenant("a"))) as whole:
                requests = task(_ask(manager, whole))
                await soon(gate.arrived.is_set)
                assert manager.slot("m").requests_of("a") == (1, 0)
                gate.open()
                await requests

    @in_loop
    async def test_part_loads_lazy_model(self) -> None:
        async with lazy_models("a") as (registry, manager):
            with permit() as whole:
                assert await _ask(manager, whole, "a", 2) == [4]
            assert registry.loads == ["a"]

    @in_loop
    async def test_evicted_model_is_loaded_for_later_part(self) -> None:
        """Parts of one request need more memory than there is, one after the other."""
        async with lazy_models("abc") as (registry, manager):
            with permit() as whole:
                for x, name in enumerate("abcab"):
                    assert await _ask(manager, whole, name, x) == [2 * x]
            assert registry.loads == list("abcab")

    @in_loop
    async def test_cancelled_part_waiting_for_load_holds_nothing(self) -> None:
        async with lazy_models("a") as (registry, manager):
            registry.gates["a"] = Gate()
            with permit() as whole:
                requests = task(_ask(manager, whole, "a"))
                await soon(registry.gates["a"].arrived.is_set)
                requests.cancel()
                await asyncio.wait([requests])
            slot = manager.slot("a")
            assert (slot.active.references, slot.requests.inflight) == (0, 0)
            registry.gates["a"].open()
            await soon(lambda: slot.state == "ready")

    @in_loop
    async def test_cancelled_part_in_queue_never_runs(self) -> None:
        gate = Gate()
        registry = FakeRegistry(lambda _: gate())
        async with serving(registry) as manager:
            with permit() as whole:
                running = await _sent(manager, whole)
                queued = task(_ask(manager, whole, x=9))
                await soon(lambda: manager.slot("m").requests.waiting == 1)
                queued.cancel()
                await asyncio.wait([queued])
                gate.open()
                await asyncio.gather(*running)
            assert registry.made[0].executed == [[0], [1]]

    @in_loop
    async def test_unload_waits_for_running_part(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(lambda _: gate())) as manager:
            with permit() as whole:
                requests = task(_ask(manager, whole, x=4))
                await soon(gate.arrived.is_set)
                unload = task(manager.unload("m"))
                await soon(lambda: manager.slot("m").state == "draining")
                gate.open()
                assert await requests == [8]
                await unload
                with pytest.raises(ModelUnloaded) as caught:
                    await _ask(manager, whole)
        assert caught.value.message == 'step "twice": its model was unloaded; ask an operator to load it'

    @in_loop
    async def test_part_is_answered_by_new_version_after_reload(self) -> None:
        async with serving(FakeRegistry()) as manager:
            with permit() as whole:
                await _ask(manager, whole)
                await manager.unload("m")
                await manager.load("m")
                assert await _ask(manager, whole, x=5) == [10]

    @in_loop
    async def test_full_queue_refuses_part_and_releases_all(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(lambda _: gate()), max_queue_size=1) as manager:
            parts, slot = SubRequests(manager), manager.slot("m")
            with permit() as whole:
                running = await _sent(manager, whole, parts=parts)
                waiting = task(_ask(manager, whole, parts=parts))
                await soon(lambda: slot.requests.waiting == 1)
                with pytest.raises(Overloaded) as caught:
                    await _ask(manager, whole, parts=parts)
                assert caught.value.retry_after_s > 0
                gate.open()
                await asyncio.gather(*running, waiting)
            assert (slot.requests.inflight, slot.active.references) == (0, 0)

    @in_loop
    async def test_bound_of_all_parts_refuses(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(lambda _: gate())) as manager:
            parts = SubRequests(manager, max_queue_size=1)
            with permit() as whole:
                requests = await _sent(manager, whole, parts=parts)
                requests.append(task(_ask(manager, whole, parts=parts)))
                await soon(lambda: manager.slot("m").requests.waiting == 1)
                with pytest.raises(Overloaded, match='step "twice": too many'):
                    await _ask(manager, whole, parts=parts)
                gate.open()
                await asyncio.gather(*requests)

    @in_loop
    async def test_timings_of_part_are_recorded(self) -> None:
        async with serving(FakeRegistry()) as manager:
            timings = Timings()
            with permit() as whole:
                await _ask(manager, whole, timings=timings)
            assert timings.batch_rows == 1

    @in_loop
    async def test_error_of_input_names_step_not_model(self) -> None:
        async with serving(FakeRegistry()) as manager:
            with permit() as whole, pytest.raises(InvalidInput) as caught:
                await _ask(manager, whole, x="bad")
        assert caught.value.message == 'x: not a number (step "twice")'

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (OutOfMemory('model "secret" needs 4 GiB'), OutOfMemory),
            (ModelFailed('model "secret" failed: /srv/secret', 2.0), ModelFailed),
            (Draining.unloaded("secret"), Draining),
            (RoundhouseError('model "secret" is strange'), RoundhouseError),
        ],
        ids=["memory", "failed", "drained", "other"],
    )
    @in_loop
    async def test_no_error_names_the_model(self, error: RoundhouseError, kind: type[RoundhouseError]) -> None:
        def fail(_: object) -> None:
            raise error

        async with make_manager(FakeRegistry(fail)) as manager:
            register(manager, "secret")
            await manager.load("secret")
            with permit() as whole, pytest.raises(kind) as caught:
                await _ask(manager, whole, "secret")
        assert caught.value.message.startswith('step "twice": ')
        assert "secret" not in caught.value.message
        assert getattr(caught.value, "retry_after_s", None) == getattr(error, "retry_after_s", None)

    @in_loop
    async def test_error_by_alias_names_no_model(self) -> None:
        def fail(_: object) -> None:
            raise RoundhouseError('model "secret" is strange')

        async with make_manager(FakeRegistry(fail)) as manager:
            register(manager, "secret", aliases=("known",))
            await manager.load("known")
            with permit() as whole, pytest.raises(RoundhouseError) as caught:
                await _ask(manager, whole, "known")
        assert caught.value.message == 'step "twice": model of the step is strange'

    @in_loop
    async def test_removed_model_is_reported_as_failed(self) -> None:
        async with serving(FakeRegistry()) as manager:
            with permit() as whole:
                await manager.remove("m")
                with pytest.raises(ModelFailed, match='step "twice": its model is not registered'):
                    await _ask(manager, whole)
