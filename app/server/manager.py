"""Build the model manager: one registry per framework, every model of the settings registered."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.config import LoadedSettings
from app.extension import open_remote
from app.protocols.shared.json.numerals.reader import reader
from frameworks.core.addresses import SourceAddress
from frameworks.core.devices import DeviceManager
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.models.residency.processes import ProcessStarter, Starter
from frameworks.models.versions.downloads import Downloads
from frameworks.scheduling.shared_limits import SharedLimits
from frameworks.sources.contract import Framework
from memory.pooled_arrays import PooledArrays
from memory.tensor_pool import TensorPool

if TYPE_CHECKING:
    from frameworks.sources.store import SourceStore


def build_manager(
    loaded: LoadedSettings,
    devices: DeviceManager,
    pool: TensorPool,
    num_workers: int = 0,
    limits: SharedLimits | None = None,
    starter: Starter | None = None,
) -> MLFrameworkManager:
    """Return a manager with every model of the settings registered; none is loaded.

    `num_workers`: processes that answer the requests, and have `limits` in common; 0: this one does.
    `starter`: starts models outside of this process; None: in engine processes.
    """
    settings = loaded.settings
    settings_of_models = registry_settings(loaded)
    manager = MLFrameworkManager(
        Loader(
            registry_factories(settings_of_models, devices, pool),
            devices,
            starter or ProcessStarter(settings_of_models, settings.logging.level),
            num_workers,
        ),
        settings.performance,
        settings.scheduling,
        settings.server.drain_timeout_s,
        settings.memory.max_model_memory,
        arrays=PooledArrays(pool),
        shared_limits=limits,
    )
    manager.residency.fetch = Downloads(partial(source_store, loaded)).fetch
    torch_models = settings.models.torch_models
    folders = {
        name: loaded.resolve(each.path) for each in torch_models if isinstance(each.path, Path) for name in each.names
    }
    for framework, entries in (("onnx", settings.models.onnx_models), ("pytorch", torch_models)):
        for entry in entries:
            path = entry.path
            path = source_folder(loaded, path) if isinstance(path, SourceAddress) else loaded.resolve(path)
            manager.register(framework, entry.with_paths(loaded.resolve, folders), path)
    for table, composite in settings.composites():
        manager.register(composite.framework, composite, loaded.base_dir / table / composite.name)
    return manager


def source_folder(loaded: LoadedSettings, address: SourceAddress) -> Path:
    """Return the folder of an address in the cache, which may not exist."""
    return source_store(loaded).folder(address)


def source_framework(loaded: LoadedSettings, address: SourceAddress) -> Framework:
    """Return the framework of the model at an address. Blocks, and raises, as SourceStore.framework."""
    return source_store(loaded).framework(address)


def source_store(loaded: LoadedSettings) -> "SourceStore":
    """Return the store of models that are fetched from addresses."""
    from frameworks.sources.store import SourceStore

    models = loaded.settings.models
    return SourceStore(loaded.resolve(models.cache_dir), models.max_download_bytes, open_remote)


def build_loader(loaded: LoadedSettings, devices: DeviceManager, pool: TensorPool) -> Loader:
    """Return the loader of a worker, which loads small models."""
    return Loader(registry_factories(registry_settings(loaded), devices, pool), devices)


def keep_compiled_code(loaded: LoadedSettings) -> None:
    """Let this process keep the code that reads numbers of JSON in the cache."""
    reader.set_cache_folder(loaded.resolve(loaded.settings.models.cache_dir) / "compiled")


def registry_settings(loaded: LoadedSettings) -> RegistrySettings:
    """Return what the registries of the frameworks take of the settings."""
    settings = loaded.settings
    return RegistrySettings(
        performance=settings.performance,
        memory=settings.memory,
        max_model_size=settings.models.max_model_size,
        cache_dir=loaded.resolve(settings.models.cache_dir),
        ageing_ms=settings.scheduling.ageing_ms,
    )
