"""Which devices there are, how much memory each has free, and on which of them a model is put."""

import os
import platform
from dataclasses import dataclass
from typing import Literal, Protocol

import structlog

from frameworks.errors import OutOfMemory
from memory.host import host_memory
from memory.sizes import format_size

log = structlog.get_logger(__name__)

# NVML counts cards by their place on the bus; CUDA counts the fastest first unless told otherwise before it starts.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

# Room beside the weights for activations and workspaces, before anything has been measured.
HEADROOM = 1.2


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
    """Measures the devices and chooses one for a model. Holds no state but the probe."""

    def __init__(self, probe: DeviceProbe, enable_gpu: bool = True) -> None:
        self._probe = probe
        self._enable_gpu = enable_gpu

    def devices(self) -> list[Device]:
        """Every device there is, accelerators first, measured now."""
        accelerators = self._probe.accelerators() if self._enable_gpu else []
        return [*accelerators, self._probe.host()]

    def place(
        self, model: str, weight_bytes: int, wanted: str = "auto", usable: tuple[str, ...] = ("cuda", "mps")
    ) -> Device:
        """The device for a model of `weight_bytes`; `usable` are the accelerators that its framework can drive.

        `auto` takes the accelerator with the most free memory that holds the weights and 20 %, else the CPU with a
        warning. A device that is named and absent gives a warning and is then chosen as `auto` would.

        Raises OutOfMemory where a device is named, is there, and is too small.
        """
        host = self._probe.host()
        if wanted == "cpu":
            return host
        accelerators = [device for device in self.devices() if device.kind in usable]
        accelerators.sort(key=lambda device: device.free_bytes, reverse=True)
        need = int(weight_bytes * HEADROOM)
        candidates = [d for d in accelerators if wanted in ("auto", d.kind, d.id)]
        if not candidates and wanted != "auto":
            log.warning(
                "device is absent, taking the best there is",
                model=model,
                wanted=wanted,
                there=[d.id for d in accelerators] or ["cpu"],
            )
            wanted, candidates = "auto", accelerators
        for device in candidates:
            if device.free_bytes >= need:
                return device
        if not candidates:
            return host
        figures = ", ".join(f"{d.id} has {format_size(d.free_bytes)} free" for d in candidates)
        if wanted != "auto":
            raise OutOfMemory(
                f'model "{model}" needs {format_size(need)} on device "{wanted}" (weights and 20 %); {figures}; '
                'unload a model or set device = "auto"'
            )
        log.warning(
            "model fits on no accelerator, taking the CPU", model=model, needs=format_size(need), devices=figures
        )
        return host
