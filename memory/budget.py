"""Account for each device's memory: its limit, and the bytes reserved by each owner."""

from collections.abc import Hashable, Iterator, Mapping


class BudgetExceeded(Exception):
    """A reservation exceeds the free bytes of a device."""

    def __init__(self, device: str, requested_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{device}: expected at most {free_bytes} free bytes, got a reservation of {requested_bytes}")
        self.device = device
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes


class Budget:
    """Bytes reserved per owner, never more than the limit of their device. An owner may reserve on several devices.

    Used by one thread.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        """`limits`: device → bytes."""
        self._limits = dict(limits)
        self._held: dict[Hashable, dict[str, int]] = {}

    @property
    def devices(self) -> list[str]:
        return list(self._limits)

    def limit(self, device: str) -> int:
        """Return the maximum bytes of all owners on a device; 0 for an unknown device."""
        return self._limits.get(device, 0)

    def used(self, device: str) -> int:
        """Return the reserved bytes of a device."""
        return sum(held.get(device, 0) for held in self._held.values())

    def free(self, device: str) -> int:
        """Return the unreserved bytes of a device."""
        return self.limit(device) - self.used(device)

    def held_by(self, owner: Hashable, device: str | None = None) -> int:
        """Return the bytes of one owner, on one device or on all; 0 without a reservation."""
        held = self._held.get(owner, {})
        return sum(held.values()) if device is None else held.get(device, 0)

    def owners(self, device: str) -> Iterator[Hashable]:
        """Iterate over the owners with a reservation on a device."""
        return (owner for owner, held in self._held.items() if device in held)

    def reserve(self, owner: Hashable, device: str, size_bytes: int) -> None:
        """Reserve bytes for an owner without a reservation on this device.

        Raises BudgetExceeded and then changes nothing.
        """
        if device in self._held.get(owner, {}):
            raise ValueError(f"{owner}: expected no reservation, got a second one")
        if size_bytes < 0:
            raise ValueError(f"size_bytes: expected 0 or more, got {size_bytes}")
        if size_bytes > self.free(device):
            raise BudgetExceeded(device, size_bytes, self.free(device))
        self._held.setdefault(owner, {})[device] = size_bytes

    def correct(self, owner: Hashable, device: str, size_bytes: int) -> None:
        """Replace an owner's bytes on a device by the measured bytes.

        Raises BudgetExceeded and then changes nothing.
        """
        held = self._held[owner]
        more_bytes = size_bytes - held[device]
        if size_bytes < 0:
            raise ValueError(f"size_bytes: expected 0 or more, got {size_bytes}")
        if more_bytes > max(0, self.free(device)):
            raise BudgetExceeded(device, more_bytes, self.free(device))
        held[device] = size_bytes

    def release(self, owner: Hashable) -> int:
        """End an owner's reservations. Returns their bytes, 0 without a reservation."""
        return sum(self._held.pop(owner, {}).values())
