"""Choose the devices of a model, and the version to evict for it: pure policy over measured sizes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from frameworks.core.devices import Device, ModelNeeds
from frameworks.models.versions.version import ModelVersion

BytesOn = Callable[[Device], int]


class Victim(NamedTuple):
    """The version to evict next. `wait_s`: seconds until it may be evicted."""

    version: ModelVersion
    wait_s: float


def choose_devices(
    candidates: Sequence[Sequence[Device]], needs: ModelNeeds, free: BytesOn, evictable: BytesOn
) -> list[Device]:
    """Return the device of each process of a model; fewer where the next one fits on no device in addition to them.

    `candidates`: of each process. `free` and `evictable`: as for `choose_device`.
    """
    chosen: list[Device] = []
    for there in candidates:
        taken = reserved_bytes(chosen, needs)
        device = choose_device(there, needs, _without(free, taken), _without(evictable, taken))
        if device is None:
            break
        chosen.append(device)
    return chosen


def _without(on: BytesOn, taken: Mapping[str, int]) -> BytesOn:
    return lambda device: on(device) - taken.get(device.memory_id, 0)


def reserved_bytes(devices: Iterable[Device], needs: ModelNeeds) -> Counter[str]:
    """Return what processes on these devices need of each memory."""
    reserved: Counter[str] = Counter()
    for device in devices:
        reserved[device.memory_id] += needs.on(device)
    return reserved


def with_grants(devices: Sequence[Device], needs: ModelNeeds, left_on: Callable[[str], int]) -> list[Device]:
    """Return the devices with what each process may take there: its need, and its share of what is left for models.

    `left_on`: bytes of the budget of a memory, beside the needs. A model that is loaded later may get the same bytes.
    """
    counts, reserved = Counter(device.memory_id for device in devices), reserved_bytes(devices, needs)

    def share(device: Device) -> int:
        memory = device.memory_id
        return max(0, min(left_on(memory), device.free_bytes - reserved[memory])) // counts[memory]

    return [replace(device, grant_bytes=needs.on(device) + share(device)) for device in devices]


def choose_device(candidates: Sequence[Device], needs: ModelNeeds, free: BytesOn, evictable: BytesOn) -> Device | None:
    """Return the device for a process of a model; None where it fits on no candidate, even after evictions.

    `free`: free bytes of a device. `evictable`: the same after all possible evictions. The accelerator with the most
    bytes left is preferred, then the one that needs the fewest evictions. The CPU, if it is a candidate, is chosen only
    where no accelerator can hold the model.
    """
    for is_accelerator in (True, False):
        devices = [device for device in candidates if (device.kind != "cpu") is is_accelerator]
        devices = [device for device in devices if needs.on(device) <= evictable(device)]
        if devices:
            return max(devices, key=lambda device: free(device) - needs.on(device))
    return None


def is_pinned(version: ModelVersion) -> bool:
    """Whether a version is never evicted; a pinned version may be evicted after it has died."""
    return version.model.entry.pinned and not version.has_died


def is_evictable(version: ModelVersion) -> bool:
    """Whether a loaded version may be evicted now."""
    if version.load_task is not None:
        return False  # it has died, and its reload unloads it
    return version.has_died or (version.is_ready and not version.model.entry.pinned)


def choose_victim(
    versions: Iterable[ModelVersion], now_s: float, min_residency_s: float = 0.0, is_urgent: bool = False
) -> Victim | None:
    """Return a dead version, else the least recently used idle one, else the version that was loaded first.

    A version stays at least as long as its load took, and `min_residency_s`. Where the working set does not fit, loads
    then take at most half of the time. The victim is drained, so that it serves the requests that hold a reference.

    `is_urgent`: an idle version need not stay, and a version in use only as long as its load took.
    """
    candidates = [version for version in versions if is_evictable(version)]
    dead = [version for version in candidates if version.has_died]
    if dead:
        return Victim(dead[0], 0.0)
    idle = [version for version in candidates if not version.is_in_use]
    if idle:
        chosen = min(idle, key=lambda version: max(version.last_used_s or 0.0, version.ready_since_s))
        if is_urgent:
            return Victim(chosen, 0.0)
    elif candidates:
        chosen = min(candidates, key=lambda version: version.ready_since_s)
    else:
        return None
    stay_s = max(chosen.load_s, 0.0 if is_urgent else min_residency_s)
    return Victim(chosen, max(0.0, chosen.ready_since_s + stay_s - now_s))
