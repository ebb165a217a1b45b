"""Build the model manager: one registry per framework, every model of the settings registered."""

from app.config import LoadedSettings
from frameworks.devices import DeviceManager
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.manager import MLFrameworkManager
from frameworks.models.loader import Loader
from frameworks.models.processes import ProcessStarter
from memory.pooled_arrays import PooledArrays
from memory.tensor_pool import TensorPool


def build_manager(loaded: LoadedSettings, devices: DeviceManager, pool: TensorPool) -> MLFrameworkManager:
    """Return a manager with every model of the settings registered; none is loaded."""
    settings = loaded.settings
    registry_settings = _registry_settings(loaded)
    manager = MLFrameworkManager(
        Loader(
            registry_factories(registry_settings, devices, pool),
            devices,
            ProcessStarter(registry_settings, settings.logging.level),
        ),
        settings.performance,
        settings.scheduling,
        settings.server.drain_timeout_s,
        settings.memory.max_model_memory,
        arrays=PooledArrays(pool),
    )
    for framework, entries in (("onnx", settings.models.onnx_models), ("pytorch", settings.models.torch_models)):
        for entry in entries:
            manager.register(framework, entry, loaded.resolve(entry.path))
    return manager


def _registry_settings(loaded: LoadedSettings) -> RegistrySettings:
    settings = loaded.settings
    return RegistrySettings(
        performance=settings.performance,
        memory=settings.memory,
        max_model_size=settings.models.max_model_size,
        cache_dir=loaded.resolve(settings.models.cache_dir),
        ageing_ms=settings.scheduling.ageing_ms,
    )
