"""The ledger: how much of each device's memory the models may take, and who takes how much of it."""

from collections.abc import Hashable, Iterator, Mapping


class BudgetExceeded(Exception):
    """There is not so much left. The stats are in bytes."""

    def __init__(self, device: str, wanted_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{device}: {wanted_bytes} bytes wanted, {free_bytes} free")
        self.device = device
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes


class Budget:
    """Per device a limit, and per owner what it holds there: of a device never more than its limit is promised.

    An owner holds memory on one device. Owned by one thread.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        """`limits`: device → bytes."""
        self._limits = dict(limits)
        self._held: dict[Hashable, tuple[str, int]] = {}

    @property
    def devices(self) -> list[str]:
        return list(self._limits)

    def limit(self, device: str) -> int:
        """Bytes that all owners together may hold there; 0 on a device that is not in the ledger."""
        return self._limits.get(device, 0)

    def used(self, device: str) -> int:
        """Bytes that are promised there."""
        return sum(size for where, size in self._held.values() if where == device)

    def free(self, device: str) -> int:
        """Bytes that can still be reserved there."""
        return self.limit(device) - self.used(device)

    def held_by(self, owner: Hashable) -> int:
        """Bytes of one owner; 0 where it holds none."""
        return self._held.get(owner, ("", 0))[1]

    def owners(self, device: str) -> Iterator[Hashable]:
        """Who holds memory on this device."""
        return (owner for owner, (where, _) in self._held.items() if where == device)

    def reserve(self, owner: Hashable, device: str, size_bytes: int) -> None:
        """Promises memory to an owner that holds none. Raises BudgetExceeded, and then nothing has changed."""
        if owner in self._held:
            raise ValueError(f"{owner} holds memory already")
        if size_bytes < 0:
            raise ValueError(f"{size_bytes} bytes cannot be reserved")
        if size_bytes > self.free(device):
            raise BudgetExceeded(device, size_bytes, self.free(device))
        self._held[owner] = (device, size_bytes)

    def correct(self, owner: Hashable, size_bytes: int) -> None:
        """What an owner really takes, as it was measured. Raises BudgetExceeded, and then nothing has changed."""
        device, reserved = self._held[owner]
        more_bytes = size_bytes - reserved
        if size_bytes < 0:
            raise ValueError(f"{size_bytes} bytes cannot be held")
        if more_bytes > max(0, self.free(device)):
            raise BudgetExceeded(device, more_bytes, self.free(device))
        self._held[owner] = (device, size_bytes)

    def release(self, owner: Hashable) -> int:
        """Takes back what an owner holds; the bytes that this was, 0 if it held none."""
        return self._held.pop(owner, ("", 0))[1]
