"""Short runs of several tenants: on the event loop while no tenant waits, and in fair order otherwise."""

import time

import pytest

from frameworks.core.tenants import Tenant
from tests.frameworks.scheduling.batch.dispatching import (
    LOOP_THREAD,
    WORKER_THREAD,
    RowModel,
    answers_of,
    first_run,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop

ONE, OTHER = Tenant("one"), Tenant("other", 3.0)


@in_loop
async def test_tenants_of_one_round_share_run() -> None:
    model = RowModel()
    async with running_dispatcher(model, runs_by_shape=True) as harness:
        harness.allow_inline()
        answers = await answers_of(harness.send(0, tenant=ONE), harness.send(1, 2, 3, tenant=OTHER))
        assert answers == [[0], [1, 2, 3]]
        counts = harness.dispatcher._counts
        assert counts.tenant_seconds["other"] == pytest.approx(3 * counts.tenant_seconds["one"])
        assert sum(counts.tenant_seconds.values()) == pytest.approx(counts.seconds[4])
        await answers_of(harness.send(4, tenant=ONE))
    assert set(model.threads) == {LOOP_THREAD}


@in_loop
async def test_round_of_one_tenant_charges_it() -> None:
    async with running_dispatcher(RowModel(), runs_by_shape=True) as harness:
        harness.allow_inline()
        await answers_of(harness.send(0, tenant=ONE), harness.send(1, tenant=ONE))
        await answers_of(harness.send(2, tenant=OTHER), harness.send(3, tenant=OTHER))
        counts = harness.dispatcher._counts
    assert counts.tenant_seconds.keys() == {"one", "other"}
    assert sum(counts.tenant_seconds.values()) == pytest.approx(counts.seconds[2])


@in_loop
async def test_rest_of_mixed_round_is_queued() -> None:
    model = RowModel(lambda _: time.sleep(0.0025))
    async with running_dispatcher(model, runs_by_shape=True, max_rows=1) as harness:
        harness.allow_inline()
        requests = [harness.send(i, tenant=(ONE, OTHER)[i % 2]) for i in range(4)]
        assert await answers_of(*requests) == [[i] for i in range(4)]
        assert model.threads == [LOOP_THREAD, *[WORKER_THREAD] * 3]
        assert harness.dispatcher._clock.num_active == 0


@in_loop
async def test_device_of_other_tenant_is_not_bypassed() -> None:
    """The run on the loop would use the device before the clock allows it."""
    gate = Gate()
    busy, model = RowModel(gate), RowModel()
    async with (
        running_dispatcher(busy) as other,
        running_dispatcher(model, runs_by_shape=True, device=other.device) as harness,
    ):
        harness.allow_inline()
        running = other.send(0, tenant=OTHER)
        await first_run(gate)
        assert await answers_of(harness.send(1, tenant=ONE)) == [[1]]
        gate.open()
        await answers_of(running)
        assert await answers_of(harness.send(2, tenant=ONE)) == [[2]]
    assert model.threads == [WORKER_THREAD, LOOP_THREAD]


@in_loop
async def test_own_use_of_device_keeps_inline_runs() -> None:
    gate = Gate()
    busy, model = RowModel(gate), RowModel()
    async with (
        running_dispatcher(busy) as other,
        running_dispatcher(model, runs_by_shape=True, device=other.device) as harness,
    ):
        harness.allow_inline()
        running = other.send(0, tenant=ONE)
        await first_run(gate)
        assert await answers_of(harness.send(1, tenant=ONE)) == [[1]]
        gate.open()
        await answers_of(running)
    assert model.threads == [LOOP_THREAD]
