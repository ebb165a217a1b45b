"""Build the model manager: one registry per framework, every model of the settings registered."""

from app.config import LoadedSettings
from frameworks.devices import DeviceManager
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.manager import MLFrameworkManager
from frameworks.models.loader import Loader
from frameworks.models.processes import ProcessStarter
from frameworks.scheduling.shared_limits import SharedLimits
from memory.pooled_arrays import PooledArrays
from memory.tensor_pool import TensorPool


def build_manager(
    loaded: LoadedSettings,
    devices: DeviceManager,
    pool: TensorPool,
    num_workers: int = 0,
    limits: SharedLimits | None = None,
) -> MLFrameworkManager:
    """Return a manager with every model of the settings registered; none is loaded.

    `num_workers`: processes that answer the requests, and have `limits` in common; 0: this one does.
    """
    settings = loaded.settings
    registry_settings = _registry_settings(loaded)
    manager = MLFrameworkManager(
        Loader(
            registry_factories(registry_settings, devices, pool),
            devices,
            ProcessStarter(registry_settings, settings.logging.level),
            num_workers,
        ),
        settings.performance,
        settings.scheduling,
        settings.server.drain_timeout_s,
        settings.memory.max_model_memory,
        arrays=PooledArrays(pool),
        shared_limits=limits,
    )
    for framework, entries in (("onnx", settings.models.onnx_models), ("pytorch", settings.models.torch_models)):
        for entry in entries:
            manager.register(framework, entry, loaded.resolve(entry.path))
    return manager


def build_loader(loaded: LoadedSettings, devices: DeviceManager, pool: TensorPool) -> Loader:
    """Return the loader of a worker, which loads small models."""
    return Loader(registry_factories(_registry_settings(loaded), devices, pool), devices)


def _registry_settings(loaded: LoadedSettings) -> RegistrySettings:
    settings = loaded.settings
    return RegistrySettings(
        performance=settings.performance,
        memory=settings.memory,
        max_model_size=settings.models.max_model_size,
        cache_dir=loaded.resolve(settings.models.cache_dir),
        ageing_ms=settings.scheduling.ageing_ms,
    )
