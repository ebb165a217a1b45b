"""Share a device fairly by virtual time: hold a tenant that is ahead of other active tenants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from frameworks.core.fairness import FairClock, TenantShare
from memory.pooled_arrays import PooledArrays


class DeviceClock(FairClock):
    """A fair clock in device seconds, which wakes the dispatchers that it holds. Owned by the event loop.

    A dispatcher does not start a run of a tenant that is ahead of another active tenant by more than a bound. The
    tenant with the least time is never held, so one dispatcher can always continue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: set[Callable[[], None]] = set()

    def is_held(self, share: TenantShare, bound_s: float) -> bool:
        """Whether a tenant is ahead of an active one by more than `bound_s` seconds of its own use of the device."""
        return self.num_active > 1 and self.lead(share) * share.tenant.weight > bound_s

    def hold(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next change that may end a hold."""
        self._held.add(wake)

    def ran(self, costs: Mapping[TenantShare, float]) -> None:
        super().ran(costs)
        if self._held:
            self._wake_held()

    def charge(self, share: TenantShare, cost: float) -> None:
        super().charge(share, cost)
        self._wake_held()

    def finish(self, costs: Mapping[TenantShare, float], actual: Mapping[TenantShare, float]) -> None:
        super().finish(costs, actual)
        self._wake_held()

    def unqueue(self, share: TenantShare) -> None:
        super().unqueue(share)
        self._wake_held()

    def _wake_held(self) -> None:
        if self._held:
            held, self._held = self._held, set()
            for wake in held:
                wake()


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """The parts of a device that its models share. `arrays`: the pool for large batches; None: numpy allocates them."""

    arrays: PooledArrays | None = None
    clock: DeviceClock = field(default_factory=DeviceClock)


class SharedDevices:
    """The shared parts of each device of the process."""

    def __init__(self, arrays: PooledArrays | None = None) -> None:
        self._arrays = arrays
        self._devices: dict[str, SharedDevice] = {}

    def of(self, device: str) -> SharedDevice:
        """Return the parts of a device, such as `cuda:0`."""
        if device not in self._devices:
            self._devices[device] = SharedDevice(self._arrays)
        return self._devices[device]
