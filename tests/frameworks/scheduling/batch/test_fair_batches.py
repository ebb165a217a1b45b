"""Tenants that share devices through real dispatchers: device seconds follow weights, and no tenant waits long."""

import asyncio

import pytest

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from tests.frameworks.scheduling.batch.simulated_device import Flood, SimulatedDevice, ask, mixed_lengths
from tests.support.loops import in_loop, settle, task

THREE, ONE, RARE = Tenant("three", 3.0), Tenant("one", 1.0), Tenant("rare", 1.0)
LENGTHS = [((4, 160), (4, 160)), ((4, 40), (100, 160)), ((100, 160), (4, 40)), ((150, 160), (150, 160))]
RARE_MARK = 7


@pytest.mark.parametrize(("of_three", "of_one"), LENGTHS)
@in_loop
async def test_device_seconds_follow_weights(of_three: tuple[int, int], of_one: tuple[int, int]) -> None:
    device = SimulatedDevice()
    dispatcher, counts = device.dispatcher()
    floods = [
        Flood(dispatcher, THREE, 32, mixed_lengths(1, *of_three)),
        Flood(dispatcher, ONE, 32, mixed_lengths(2, *of_one)),
    ]
    for _ in range(400):
        await device.run_batch()
    for flood in floods:
        await flood.stop()
    assert counts.tenant_seconds["three"] == pytest.approx(3 * counts.tenant_seconds["one"], rel=0.05)
    assert sum(counts.tenant_seconds.values()) == pytest.approx(sum(counts.seconds.values()))


@in_loop
async def test_rare_tenant_is_in_next_batch() -> None:
    device = SimulatedDevice()
    dispatcher, _ = device.dispatcher()
    floods = [Flood(dispatcher, THREE, 32, mixed_lengths(1)), Flood(dispatcher, ONE, 32, mixed_lengths(2))]
    for _ in range(100):
        await device.run_batch()
    lengths = mixed_lengths(3)
    for _ in range(40):
        asked: list[asyncio.Task[None]] = []

        async def send(asked: list[asyncio.Task[None]] = asked) -> None:
            asked.append(task(ask(dispatcher, RARE, next(lengths), RARE_MARK)))
            await settle()

        await device.run_batch(meanwhile=send)
        assert RARE_MARK in await device.run_batch(), "it is in the batch after the one that was running"
        assert asked[0].done()
        for _ in range(10):
            await device.run_batch()
    for flood in floods:
        await flood.stop()


@in_loop
async def test_unused_share_goes_to_others() -> None:
    device = SimulatedDevice()
    dispatcher, counts = device.dispatcher()
    alone = Flood(dispatcher, ONE, 32, mixed_lengths(1))
    for _ in range(100):
        await device.run_batch()
    alone_rate = alone.answers / counts.tenant_seconds["one"]
    modest = Flood(dispatcher, THREE, 1, mixed_lengths(2))
    before, before_s = alone.answers, sum(counts.tenant_seconds.values())
    for _ in range(200):
        await device.run_batch()
    beside_rate = (alone.answers - before) / (sum(counts.tenant_seconds.values()) - before_s)
    await alone.stop()
    await modest.stop()
    # The weight of the other would allow it three quarters; it uses less.
    assert beside_rate > 0.6 * alone_rate
    assert modest.answers >= 90


@in_loop
async def test_flood_of_one_model_spares_other_model() -> None:
    """The flooded model has four workers. Without a common clock it would get four fifths of the device."""
    device = SimulatedDevice()
    flooded, flooded_counts = device.dispatcher(workers=4)
    other, other_counts = device.dispatcher()
    floods = [Flood(flooded, ONE, 64, mixed_lengths(1)), Flood(other, RARE, 32, mixed_lengths(2))]
    for _ in range(400):
        await device.run_batch()
    for flood in floods:
        await flood.stop()
    assert flooded_counts.tenant_seconds["one"] == pytest.approx(other_counts.tenant_seconds["rare"], rel=0.1)


@in_loop
async def test_held_flood_continues_when_other_is_idle() -> None:
    device = SimulatedDevice()
    flooded, _ = device.dispatcher(workers=4)
    other, _ = device.dispatcher()
    flood = Flood(flooded, ONE, 64, mixed_lengths(1))
    for _ in range(50):
        await device.run_batch()
    brief = Flood(other, THREE, 8, mixed_lengths(2))
    for _ in range(50):
        await device.run_batch()
    await brief.stop()
    answers = flood.answers
    for _ in range(50):
        await device.run_batch()
    await flood.stop()
    assert flood.answers >= answers + 50


@in_loop
async def test_cancelled_requests_cost_nothing() -> None:
    device = SimulatedDevice()
    dispatcher, counts = device.dispatcher()
    first = task(ask(dispatcher, ONE, 10))
    await settle()
    first.cancel()
    await settle()
    second = task(ask(dispatcher, THREE, 10))
    await settle()
    assert await device.run_batch() == []
    assert await device.run_batch() == [0]
    assert second.done()
    assert counts.tenant_seconds.keys() == {"three"}
    assert device.shared.clock.num_active == 0


@in_loop
async def test_single_tenant_gets_batches_in_advance() -> None:
    device = SimulatedDevice()
    dispatcher, counts = device.dispatcher()
    flood = Flood(dispatcher, DEFAULT_TENANT, 128, mixed_lengths(1))
    for _ in range(50):
        await device.run_batch()
    assert len(device.jobs) == 2
    await flood.stop()
    assert counts.tenant_seconds.keys() == {""}
