"""Test light parts of requests, which run at once: without a place, for the tenant of the whole request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidInput, ModelFailed
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.local import LocalEngine
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.subrequests import SubRequests
from frameworks.runtime import BatchModel, ModelEntry
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.inline import LIGHT_S
from frameworks.types import ModelSpec, TensorBatch
from tests.support.batch_models import FakeRegistry, numbers
from tests.support.loops import in_loop
from tests.support.managing import make_manager, permit, register


class LightRegistry(FakeRegistry):
    """Models whose runs depend on shapes only, as those of most graphs do."""

    def load(self, entry: ModelEntry, path: Path, device: Device) -> list[BatchModel]:
        instances = super().load(entry, path, device)
        for each in instances:
            each.spec = replace(each.spec, runs_by_shape=True)
        return instances


@asynccontextmanager
async def light_model(**settings: Any) -> AsyncIterator[MLFrameworkManager]:
    """Serve a model that has answered one request, alone, on the event loop."""
    async with make_manager(LightRegistry()) as manager:
        register(manager, **settings)
        await manager.load("m")
        engine = manager.slot("m").active.engine()
        assert isinstance(engine, LocalEngine)
        assert isinstance(engine.dispatcher, Dispatcher)
        assert engine.dispatcher._inline is not None
        engine.dispatcher._inline.policy.learn((("y",),), 1, LIGHT_S / 100)
        await engine.submit(numbers(0))
        await asyncio.sleep(0)
        yield manager


def now(manager: MLFrameworkManager, whole: Permit, x: object = 1, name: str = "m") -> Any:
    def make(spec: ModelSpec) -> TensorBatch:
        assert spec.framework == "fake"
        return numbers(x)

    timings = Timings()
    answer = SubRequests(manager).compute_now(Run(whole, timings, 5), name, make, 'step "twice"')
    assert (answer is None) == (timings.compute_s == 0.0)
    return None if answer is None else answer["y"]


class TestComputeNow:
    @in_loop
    async def test_light_part_takes_no_place(self) -> None:
        async with light_model() as manager:
            limit = RequestLimit("the server", None, None)
            whole, slot = Permit(limit, Tenant("a")), manager.slot("m")
            assert now(manager, whole, 3) == [6]
            assert (slot.active.references, slot.requests.inflight, slot.requests.waiting) == (0, 0, 0)
            assert slot.batches.tenant_seconds["a"] > 0
            whole.release()

    @in_loop
    async def test_bound_of_model_sends_part_to_queue(self) -> None:
        async with light_model(max_concurrent_requests=1) as manager:
            slot = manager.slot("m")
            with permit() as whole, permit() as other:
                other.queue(slot.requests)
                assert now(manager, whole) is None
                other.begin()
                assert now(manager, whole) is None, "its only place is taken"

    @in_loop
    async def test_unloaded_or_unknown_model_runs_nothing(self) -> None:
        async with light_model() as manager:
            with permit() as whole:
                assert now(manager, whole, name="other") is None
                await manager.unload("m")
                assert now(manager, whole) is None

    @in_loop
    async def test_error_names_step_not_model(self) -> None:
        async with light_model() as manager:
            with permit() as whole, pytest.raises(InvalidInput) as caught:
                now(manager, whole, "bad")
        assert caught.value.message == 'x: not a number (step "twice")'

    @in_loop
    async def test_error_of_request_is_raised(self) -> None:
        def refuse(_: ModelSpec) -> TensorBatch:
            raise ModelFailed("its model has changed")

        async with light_model() as manager:
            with permit() as whole, pytest.raises(ModelFailed, match='step "twice": its model failed'):
                SubRequests(manager).compute_now(Run(whole, Timings(), 5), "m", refuse, 'step "twice"')
