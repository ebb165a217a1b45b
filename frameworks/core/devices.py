"""List devices, measure their free memory, and select the candidates for a model."""

import ctypes
import os
import platform
import sys
from dataclasses import dataclass, field
from typing import Literal, Protocol

import structlog

from memory.host import host_memory

log = structlog.get_logger(__name__)

# NVML orders cards by bus; CUDA orders them by speed unless this is set before it starts.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


# The rest is for activations and for other processes.
SHARE_FOR_MODELS = 0.8


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can hold models. Memory in bytes, as measured by the probe.

    `grant_bytes`: of the memory for models, what a process may take there; None where no ledger has chosen the device.
    """

    kind: Literal["cuda", "mps", "cpu"]
    index: int
    name: str
    total_bytes: int
    free_bytes: int
    grant_bytes: int | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """`cuda:0`, `mps` or `cpu`, as in torch and config.toml."""
        return f"cuda:{self.index}" if self.kind == "cuda" else self.kind

    @property
    def memory_id(self) -> str:
        """The device that owns the memory; an Apple GPU uses that of the host."""
        return "cpu" if self.kind == "mps" else self.id


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """The needs of a model, estimated from its files before the load.

    `host_bytes`, `accelerator_bytes`: memory on that kind of device, including the activations of the largest batch.
    `wanted`: the `device` of the entry: `auto`, a name, `cuda:*`, or a name for each process. `usable`: the kinds of
    accelerators that can run the model. The bytes are those of one process, or of one of its ranks.
    """

    host_bytes: int
    accelerator_bytes: int
    wanted: str | tuple[str, ...] = "auto"
    usable: tuple[str, ...] = ()

    def on(self, device: Device) -> int:
        """Return the bytes on that device."""
        return self.host_bytes if device.kind == "cpu" else self.accelerator_bytes


class DeviceProbe(Protocol):
    """Measure the devices of a machine. Tests replace it to simulate other machines."""

    def accelerators(self) -> list[Device]: ...

    def host(self) -> Device: ...


class SystemProbe:
    """Measure this machine: CUDA through NVML (without importing a framework), MPS on Apple silicon, host memory."""

    def accelerators(self) -> list[Device]:
        return self._cuda() + self._mps()

    def host(self) -> Device:
        total, available = host_memory()
        return Device("cpu", 0, platform.processor() or platform.machine(), total, available)

    def _cuda(self) -> list[Device]:
        if sys.platform == "linux" and not _has_nvml():
            return []
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return []
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
            devices = []
            for index, position in enumerate(visible_positions(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))):
                memory = pynvml.nvmlDeviceGetMemoryInfo(handles[position])
                name = str(pynvml.nvmlDeviceGetName(handles[position]))
                devices.append(Device("cuda", index, name, int(memory.total), int(memory.free)))
            return devices
        except pynvml.NVMLError as error:
            log.warning("cuda devices could not be measured", reason=str(error))
            return []
        finally:
            pynvml.nvmlShutdown()

    def _mps(self) -> list[Device]:
        if platform.system() != "Darwin" or platform.machine() != "arm64":
            return []
        total, available = host_memory()  # one memory for CPU and GPU
        return [Device("mps", 0, "Apple GPU", total, available)]


def _has_nvml() -> bool:
    """Look for the library of NVML as pynvml does, whose import takes 10 ms."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def visible_positions(uuids: list[str], visible: str | None) -> list[int]:
    """Return the NVML positions of CUDA's devices 0, 1, … under `CUDA_VISIBLE_DEVICES`.

    NVML lists every device. CUDA lists the devices of the variable in its order, up to the first unknown one. An item
    is a number, a UUID or a prefix of a UUID; a repeated device hides all (CUDA C++ Programming Guide, "CUDA
    Environment Variables").
    """
    if visible is None:
        return list(range(len(uuids)))
    positions: list[int] = []
    for item in (part.strip() for part in visible.split(",")):
        if item.isdecimal() and int(item) < len(uuids):
            positions.append(int(item))
            continue
        matches = [i for i, uuid in enumerate(uuids) if item and uuid.startswith(item)]
        if len(matches) != 1:
            break
        positions.append(matches[0])
    return positions if len(set(positions)) == len(positions) else []


class DeviceManager:
    """Measure the devices and select candidates for models. Its only state is the probe."""

    def __init__(self, probe: DeviceProbe, enable_gpu: bool = True) -> None:
        self._probe = probe
        self._enable_gpu = enable_gpu

    def devices(self) -> list[Device]:
        """Measure and return all devices, accelerators first."""
        accelerators = self._probe.accelerators() if self._enable_gpu else []
        return [*accelerators, self._probe.host()]

    def host(self) -> Device:
        """Measure and return the host."""
        return self._probe.host()

    def memory_limits(self, max_model_bytes: int | None) -> dict[str, int]:
        """Return the limit for models of each memory: `max_model_bytes`, or 80 % of the bytes free now."""
        return {
            device.memory_id: int(device.free_bytes * SHARE_FOR_MODELS) if max_model_bytes is None else max_model_bytes
            for device in self.devices()
        }

    def wanted(self, needs: ModelNeeds) -> list[str]:
        """Return the wanted device of each process. Measures; none for `cuda:*` without a usable CUDA device."""
        if needs.wanted == "cuda:*":
            return [each.id for each in self.devices() if each.kind == "cuda" and each.kind in needs.usable]
        return [needs.wanted] if isinstance(needs.wanted, str) else list(needs.wanted)

    def candidates(self, model: str, needs: ModelNeeds, is_first_look: bool = True) -> list[Device]:
        """Measure and return the devices for one process of a model: accelerators with the most free memory first.

        The CPU is last where `device` is `auto`. An absent named device is treated as `auto`, with a warning at the
        first call for a load.
        """
        host = self._probe.host()
        if needs.wanted == "cpu":
            return [host]
        accelerators = [device for device in self.devices() if device.kind in needs.usable]
        accelerators.sort(key=lambda device: device.free_bytes, reverse=True)
        if needs.wanted == "auto":
            return [*accelerators, host]
        named = [device for device in accelerators if needs.wanted in (device.kind, device.id)]
        if named:
            return named
        if is_first_look:
            log.warning(
                "device is absent, taking the best there is",
                model=model,
                wanted=needs.wanted,
                there=[device.id for device in accelerators] or ["cpu"],
            )
        return [*accelerators, host]
