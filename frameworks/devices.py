"""Which devices there are, how much memory each has free, and on which of them a model is put."""

import os
import platform
from dataclasses import dataclass
from typing import Literal, Protocol

import structlog

from memory.host import host_memory

log = structlog.get_logger(__name__)

# NVML counts cards by their place on the bus; CUDA counts the fastest first unless told otherwise before it starts.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


# The rest is for what models need while they run, and for everybody else.
SHARE_FOR_MODELS = 0.8


@dataclass(frozen=True, slots=True)
class Device:
    """One place where a model can stand. Memory in bytes, as measured when it was probed."""

    kind: Literal["cuda", "mps", "cpu"]
    index: int
    name: str
    total_bytes: int
    free_bytes: int

    @property
    def id(self) -> str:
        """`cuda:0`, `mps`, `cpu`: as torch and config.toml spell it."""
        return f"cuda:{self.index}" if self.kind == "cuda" else self.kind

    @property
    def memory_id(self) -> str:
        """Whose memory it is: an Apple GPU's is the host's."""
        return "cpu" if self.kind == "mps" else self.id


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a model wants of a device by its files' word: before it is loaded nothing more is known.

    `host_bytes`, `accelerator_bytes`: there, activations of the largest batch included. `wanted`: the entry's word,
    `auto` or a device. `usable`: the accelerators that its framework can drive for it.
    """

    host_bytes: int
    accelerator_bytes: int
    wanted: str = "auto"
    usable: tuple[str, ...] = ()

    def on(self, device: Device) -> int:
        """Bytes there."""
        return self.host_bytes if device.kind == "cpu" else self.accelerator_bytes


class DeviceProbe(Protocol):
    """Asks the machine. The tests' small real fakes stand for machines that we do not have."""

    def accelerators(self) -> list[Device]: ...

    def host(self) -> Device: ...


class SystemProbe:
    """This machine: CUDA through NVML (which needs no framework imported), MPS on Apple silicon, the host's memory."""

    def accelerators(self) -> list[Device]:
        return self._cuda() + self._mps()

    def host(self) -> Device:
        total, available = host_memory()
        return Device("cpu", 0, platform.processor() or platform.machine(), total, available)

    def _cuda(self) -> list[Device]:
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


def visible_positions(uuids: list[str], visible: str | None) -> list[int]:
    """The NVML positions that CUDA numbers 0, 1, … under `CUDA_VISIBLE_DEVICES`.

    NVML shows every device; CUDA shows those that the variable lists, by number or by UUID (a prefix will do), in its
    order, up to the first that does not exist (CUDA C++ Programming Guide, "CUDA Environment Variables"). Where one is
    listed twice it shows none.
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
    """Measures the devices, and says on which a model may be put. Holds no state but the probe."""

    def __init__(self, probe: DeviceProbe, enable_gpu: bool = True) -> None:
        self._probe = probe
        self._enable_gpu = enable_gpu

    def devices(self) -> list[Device]:
        """Every device there is, accelerators first, measured now."""
        accelerators = self._probe.accelerators() if self._enable_gpu else []
        return [*accelerators, self._probe.host()]

    def memory_limits(self, max_model_bytes: int | None) -> dict[str, int]:
        """Per memory what models may take of it: as it is said, or 80 % of what is free now."""
        return {
            device.memory_id: int(device.free_bytes * SHARE_FOR_MODELS) if max_model_bytes is None else max_model_bytes
            for device in self.devices()
        }

    def candidates(self, model: str, needs: ModelNeeds, is_first_look: bool = True) -> list[Device]:
        """The devices on which a model may be put, measured now: accelerators with the most free memory first, then the
        CPU where the entry leaves the choice to us.

        A device that is named and absent gives a warning at the first look, and the choice is then as for `auto`.
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
