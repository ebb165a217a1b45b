"""The clock of a device: which tenants it holds, and when it wakes their dispatchers."""

from frameworks.core.tenants import Tenant
from frameworks.scheduling.device_clock import DeviceClock, SharedDevices

ONE, HEAVY = Tenant("one"), Tenant("heavy", 4.0)


def test_tenant_ahead_is_held_beyond_bound() -> None:
    clock = DeviceClock()
    one, heavy = clock.share(ONE), clock.share(HEAVY)
    clock.queue(one)
    clock.charge(one, 10.0)
    assert not clock.is_held(one, 0.0), "no other tenant is active"
    clock.queue(heavy)
    clock.charge(one, 2.0)
    assert clock.is_held(one, 1.0)
    assert not clock.is_held(one, 2.0)
    assert not clock.is_held(heavy, 0.0), "the tenant with the least time is never held"


def test_bound_is_own_use_of_device() -> None:
    clock = DeviceClock()
    one, heavy = clock.share(ONE), clock.share(HEAVY)
    clock.queue(one)
    clock.queue(heavy)
    clock.charge(heavy, 8.0)  # two units of virtual time
    assert clock.is_held(heavy, 7.0)
    assert not clock.is_held(heavy, 8.0)


def test_each_change_wakes_held_dispatchers_once() -> None:
    clock = DeviceClock()
    one, heavy = clock.share(ONE), clock.share(HEAVY)
    clock.queue(one)
    clock.queue(heavy)
    woken: list[str] = []
    clock.hold(lambda: woken.append("unqueue"))
    clock.unqueue(heavy)
    clock.hold(lambda: woken.append("start"))
    clock.start({one: 1.0})
    clock.hold(lambda: woken.append("finish"))
    clock.finish({one: 1.0}, {})
    clock.charge(one, 1.0)
    assert woken == ["unqueue", "start", "finish"]


def test_devices_have_clocks_of_their_own() -> None:
    devices = SharedDevices()
    assert devices.of("cuda:0") is devices.of("cuda:0")
    assert devices.of("cuda:0").clock is not devices.of("cpu").clock
