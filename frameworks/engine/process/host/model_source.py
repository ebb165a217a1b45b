"""Load the one model of an engine process."""

import pickle
from pathlib import Path
from typing import NamedTuple

from frameworks.core.channel.messages import ProtocolError
from frameworks.core.devices import Device, DeviceManager, ModelNeeds, SystemProbe
from frameworks.core.progress import working
from frameworks.engine.loading import load_instances, used_bytes
from frameworks.engine.process.wire.messages import Measure
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.runtime import LoadedModel, ModelEntry, Registry
from frameworks.scheduling.device_clock import SharedDevice
from memory.garbage import exclude_imports
from memory.host import proportional_bytes
from memory.pooled_arrays import PooledArrays
from memory.tensor_pool import TensorPool


class HostedModel(NamedTuple):
    """A model that is loaded and warm. `memory_bytes`: what it takes of its device, with its process on a CPU."""

    instances: LoadedModel
    device: SharedDevice
    memory_bytes: int
    load_s: float
    warm_up_s: float


class _Measured(NamedTuple):
    registry: Registry
    entry: ModelEntry
    path: Path
    devices: DeviceManager
    pool: TensorPool


class ModelSource:
    """Load the model of the process with the registries of the frameworks, as the server loads its own models.

    The methods block; each call has a thread of its own.
    """

    def __init__(self) -> None:
        self._measured: _Measured | None = None

    def measure(self, message: Measure) -> ModelNeeds:
        """Estimate what the model needs of a device. Raises InvalidModel."""
        entry: ModelEntry = pickle.loads(message.entry)  # noqa: S301 - of the server, which started this process
        settings: RegistrySettings = pickle.loads(message.settings)  # noqa: S301
        return self.prepare(message.framework, entry, Path(message.path), settings)

    def prepare(self, framework: str, entry: ModelEntry, path: Path, settings: RegistrySettings) -> ModelNeeds:
        """As `measure`, of a model that needs no message."""
        devices = DeviceManager(SystemProbe(), settings.performance.enable_gpu)
        pool = TensorPool(settings.memory)
        registry = registry_factories(settings, devices, pool, is_alone=True)[framework]()
        # Collections would scan the objects of the framework, which last until the end.
        exclude_imports()
        self._measured = _Measured(registry, entry, path, devices, pool)
        return registry.needs(entry, path)

    def load(self, device: Device) -> HostedModel:
        """Load the model that was measured, and warm it up.

        Raises InvalidModel, OutOfMemory, and errors of libraries on damaged files.
        """
        if self._measured is None:
            raise ProtocolError("expected a model that was measured, got none")
        registry, entry, path, devices, pool = self._measured
        # The memory that a framework keeps on an accelerator is part of what this process takes.
        before = used_bytes(path, device, devices)
        # The host sends it to the server.
        with working("load", entry.name):
            registry.prepare(device)
            loaded = load_instances(registry, entry, path, device, devices)
        taken = proportional_bytes() if device.memory_id == "cpu" else used_bytes(path, device, devices) - before
        spec = loaded.instances[0].spec
        memory_bytes = max(spec.memory_bytes, taken) + (spec.state_bytes if device.memory_id == "cpu" else 0)
        return HostedModel(
            loaded.instances, SharedDevice(PooledArrays(pool)), memory_bytes, loaded.load_s, loaded.warm_up_s
        )
