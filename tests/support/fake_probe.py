"""Machines that we do not have: a small real DeviceProbe that says what it is told."""

from dataclasses import dataclass, field

from frameworks.devices import Device

GIB = 1024**3


def cuda(index: int, free_bytes: int, total_bytes: int = 24 * GIB) -> Device:
    """The CUDA device with this number."""
    return Device("cuda", index, f"Card {index}", total_bytes, free_bytes)


@dataclass
class FakeProbe:
    """A host of 64 GiB, and these accelerators."""

    there: list[Device] = field(default_factory=list)

    def accelerators(self) -> list[Device]:
        return list(self.there)

    def host(self) -> Device:
        return Device("cpu", 0, "Processor", 64 * GIB, 32 * GIB)
