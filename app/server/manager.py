"""Build the model manager: one registry per framework, every model of the settings registered."""

from collections.abc import Callable

from app.config import LoadedSettings
from frameworks.devices import DeviceManager
from frameworks.manager import MLFrameworkManager
from frameworks.quantization.copies import QuantizedCopies
from frameworks.runtime import Registry
from memory.pooled_arrays import PooledArrays
from memory.tensor_pool import TensorPool


def build_manager(loaded: LoadedSettings, devices: DeviceManager, pool: TensorPool) -> MLFrameworkManager:
    """Return a manager with every model of the settings registered; none is loaded."""
    settings = loaded.settings
    manager = MLFrameworkManager(
        _registry_factories(loaded, devices, pool),
        devices,
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


def _registry_factories(
    loaded: LoadedSettings, devices: DeviceManager, pool: TensorPool
) -> dict[str, Callable[[], Registry]]:
    """Return framework → function that creates its registry.

    A framework is imported when its first model is loaded: a server with only ONNX models never imports torch or
    transformers, one with only PyTorch models never imports onnxruntime.
    """
    settings = loaded.settings
    enable_memory_mapping = settings.memory.enable_memory_mapping
    copies = QuantizedCopies(loaded.resolve(settings.models.cache_dir))

    def create_onnx() -> Registry:
        from frameworks.onnx.registry import OnnxRegistry

        return OnnxRegistry(
            devices,
            settings.performance,
            settings.models.max_model_size,
            copies,
            enable_memory_mapping,
            PooledArrays(pool),
        )

    def create_pytorch() -> Registry:
        from frameworks.pytorch.registry import TorchRegistry

        return TorchRegistry(
            settings.performance,
            settings.models.max_model_size,
            copies,
            enable_memory_mapping,
            pool,
            settings.scheduling.ageing_ms / 1000,
        )

    return {"onnx": create_onnx, "pytorch": create_pytorch}
