"""The charge of steps on the clock of a device, and the tenants that it holds."""

import asyncio

import pytest

from frameworks.core.tenants import Tenant
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.device_clock import DeviceClock
from frameworks.scheduling.steps.tenant_accounting import StepAccounting
from tests.frameworks.scheduling.steps.harness import read_all, running_worker, text_of
from tests.support.loops import in_loop, soon
from tests.support.step_models import EchoModel

HEAVY, LIGHT, OTHER = Tenant("heavy", 3.0), Tenant("light"), Tenant("other")


class Charged:
    """Charges with the holds that they ask for."""

    def __init__(self) -> None:
        self.clock = DeviceClock()
        self.counts = BatchCounts()
        self.holds: list[frozenset[str]] = []
        self.charges = StepAccounting(self.clock, self.counts, self.holds.append)


def test_step_seconds_divided_by_costs() -> None:
    charged = Charged()
    charged.charges.open(1, HEAVY)
    charged.charges.open(2, LIGHT)
    charged.charges.charge([(HEAVY, 6.0), (LIGHT, 2.0)], 0.8)
    assert charged.counts.tenant_seconds == pytest.approx({"heavy": 0.6, "light": 0.2})
    assert charged.clock.share(HEAVY).time == pytest.approx(charged.clock.share(LIGHT).time) == pytest.approx(0.2)
    assert charged.holds == []


def test_tenant_of_ended_sequence_is_charged() -> None:
    charged = Charged()
    charged.charges.open(1, LIGHT)
    charged.charges.end(1)
    charged.charges.end(1)
    charged.charges.charge([(LIGHT, 1.0)], 0.5)
    charged.charges.charge([], 0.5)
    assert charged.clock.share(LIGHT).time == 0.5
    assert charged.clock.num_active == 0


def test_tenant_without_computed_sequence_holds_none() -> None:
    """Its sequence waits for memory."""
    charged = Charged()
    charged.charges.open(1, OTHER)
    charged.charges.open(2, LIGHT)
    for _ in range(9):
        charged.charges.charge([(LIGHT, 1.0)], 0.5)
    assert charged.clock.num_active == 1
    charged.charges.charge([(LIGHT, 1.0), (OTHER, 1.0)], 0.5)
    assert charged.clock.num_active == 2
    assert charged.clock.lead(charged.clock.share(LIGHT)) == 0
    charged.charges.charge([(LIGHT, 1.0)], 0.5)
    assert charged.clock.num_active == 1
    assert charged.holds == []


def test_tenant_ahead_of_device_is_held() -> None:
    charged = Charged()
    other = charged.clock.share(OTHER)
    charged.clock.queue(other)
    charged.charges.open(1, LIGHT)
    for _ in range(2):
        charged.charges.charge([(LIGHT, 1.0)], 0.5)
    assert charged.holds == []
    charged.charges.charge([(LIGHT, 1.0)], 0.5)
    assert charged.holds == [{"light"}]
    # The other tenant runs a batch.
    charged.clock.start({other: 0.75})
    assert charged.holds == [{"light"}, frozenset()]


@pytest.mark.parametrize("ends", ["sequence", "other"])
def test_hold_ends_with_either_tenant(ends: str) -> None:
    charged = Charged()
    other = charged.clock.share(OTHER)
    charged.clock.queue(other)
    charged.charges.open(1, LIGHT)
    for _ in range(4):
        charged.charges.charge([(LIGHT, 1.0)], 0.5)
    if ends == "other":
        charged.clock.unqueue(other)
    else:
        charged.charges.end(1)
    assert charged.holds == [{"light"}, frozenset()]


@pytest.mark.parametrize(("tenant", "is_held"), [(HEAVY, False), (LIGHT, True)])
def test_weight_allows_longer_use_of_device(tenant: Tenant, is_held: bool) -> None:
    charged = Charged()
    other = charged.clock.share(OTHER)
    charged.clock.queue(other)
    charged.charges.open(1, tenant)
    for _ in range(30):
        charged.charges.charge([(tenant, 1.0)], 0.5)
        charged.clock.charge(other, 0.5 / 3)
    assert bool(charged.holds) == is_held


@in_loop
async def test_held_sequence_pauses_then_completes() -> None:
    async with running_worker(EchoModel()) as harness:
        other = harness.clock.share(OTHER)
        harness.clock.queue(other)
        feed = harness.open("abc", max_tokens=900, tenant=LIGHT)
        await soon(lambda: harness.worker._thread._held == {"light"})
        await soon(lambda: bool(harness.model.idle_calls))
        assert not feed.is_over
        harness.clock.unqueue(other)
        assert len(text_of(await read_all(feed))) == 900


@in_loop
async def test_other_sequences_continue_beside_held() -> None:
    async with running_worker(EchoModel()) as harness:
        other = harness.clock.share(OTHER)
        harness.clock.queue(other)
        held = harness.open("abc", max_tokens=900, tenant=LIGHT)
        await soon(lambda: harness.worker._thread._held == {"light"})
        assert len(text_of(await read_all(harness.open("xyz", max_tokens=2, tenant=OTHER)))) == 2
        assert [2] in harness.model.steps
        held.close()
        harness.clock.unqueue(other)


@in_loop
async def test_closing_worker_completes_held_sequences() -> None:
    async with running_worker(EchoModel()) as harness:
        other = harness.clock.share(OTHER)
        harness.clock.queue(other)
        feed = harness.open("abc", max_tokens=900, tenant=LIGHT)
        await soon(lambda: harness.worker._thread._held == {"light"})
        closing = asyncio.ensure_future(harness.worker.close())
        assert len(text_of(await read_all(feed))) == 900
        await closing
        harness.clock.unqueue(other)
