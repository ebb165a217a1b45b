"""A DeviceProbe that reports given devices, for machines which the tests do not have."""

from dataclasses import dataclass, field

from frameworks.core.devices import Device

GIB = 1024**3


def cuda(index: int, free_bytes: int, total_bytes: int = 24 * GIB) -> Device:
    """Return the CUDA device with this index."""
    return Device("cuda", index, f"Card {index}", total_bytes, free_bytes)


@dataclass
class FakeProbe:
    """Report a host of 64 GiB and the accelerators in `there`."""

    there: list[Device] = field(default_factory=list)

    def accelerators(self) -> list[Device]:
        return list(self.there)

    def host(self) -> Device:
        return Device("cpu", 0, "Processor", 64 * GIB, 32 * GIB)
