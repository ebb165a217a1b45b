"""Load the instances of a model, warm them up, and measure their memory. Blocks: call it in a thread."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from frameworks.core.devices import Device, DeviceManager
from frameworks.core.errors import InvalidModel
from frameworks.core.progress import phase, step
from frameworks.runtime import BatchModel, LoadedModel, ModelEntry, Registry
from frameworks.tasks.architectures import OTHER_NAMES
from memory.allocator import give_back_freed_memory, in_use_bytes
from memory.host import mapped_bytes, resident_bytes


@dataclass(frozen=True, slots=True)
class LoadedInstances:
    """Instances that are warmed up. `growth_bytes`: of the memory in use. `load_s`: includes the warm-up."""

    instances: LoadedModel
    growth_bytes: int
    load_s: float
    warm_up_s: float


def load_instances(
    registry: Registry, entry: ModelEntry, path: Path, device: Device, devices: DeviceManager
) -> LoadedInstances:
    """Load and warm up a model. Raises InvalidModel, OutOfMemory, and errors of libraries on damaged files."""
    load_started_s = time.perf_counter()
    before = used_bytes(path, device, devices)
    phase("files")
    instances = registry.load(entry, path, device)
    started_s = time.perf_counter()
    try:
        _check_task(instances, entry)
        _declare_dimensions(instances, entry)
        phase("warm-up", len(instances), "instances")
        for instance in instances:
            instance.warm_up()
            step()
    except BaseException:
        for instance in instances:
            instance.close()
        raise
    warm_up_s = time.perf_counter() - started_s
    give_back_freed_memory()
    growth = used_bytes(path, device, devices) - before
    return LoadedInstances(instances, growth, time.perf_counter() - load_started_s, warm_up_s)


def _check_task(instances: LoadedModel, entry: ModelEntry) -> None:
    """Raise InvalidModel for a model of another task than the entry names."""
    named = getattr(entry, "task", None)
    if named is None:
        return
    for instance in instances:
        if instance.spec.task != OTHER_NAMES.get(named, named):
            raise InvalidModel(
                f'task: expected "{instance.spec.task}", that of the model, got "{named}"; correct it or remove it'
            )


def _declare_dimensions(instances: LoadedModel, entry: ModelEntry) -> None:
    """Offer the shorter sizes of embeddings that the entry names. Raises InvalidModel where the model has none."""
    if entry.dimensions is None:
        return
    for instance in instances:
        spec = instance.spec
        if spec.text is None or spec.task != "embed":
            raise InvalidModel(
                f"dimensions: expected a model that embeds texts, got one whose task is {spec.task}; remove the key"
            )
        size, sizes = spec.text.embedding_size, sorted(set(entry.dimensions))
        if size is not None and sizes[-1] > size:
            raise InvalidModel(f"dimensions: expected sizes up to {size}, that of the embeddings, got {sizes[-1]}")
        shorter = tuple(each for each in sizes if each != size)
        cast(BatchModel, instance).spec = replace(spec, text=replace(spec.text, shorter_sizes=shorter))


def used_bytes(path: Path, device: Device, devices: DeviceManager) -> int:
    """Return the bytes in use by the model at `path`; only the difference of two measurements is meaningful."""
    if device.kind == "cuda":
        return -next((d.free_bytes for d in devices.devices() if d.id == device.id), 0)
    in_use = in_use_bytes()
    if in_use is None:
        return resident_bytes()
    return in_use + mapped_bytes(path)
