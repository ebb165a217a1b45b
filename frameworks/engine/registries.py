"""Make the registries of the frameworks: in the server, and in an engine process for its one model."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from pydantic import BaseModel, Field

from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.quantization.copies import QuantizedCopies
from frameworks.runtime import BatchModel, Registry
from memory.garbage import freeze
from memory.pooled_arrays import PooledArrays
from memory.settings import SETTINGS_RULES, MemorySettings
from memory.tensor_pool import TensorPool


class RegistrySettings(BaseModel):
    """The settings that registries read. `cache_dir`: absolute. `max_model_size`: in bytes; None: no limit."""

    model_config = SETTINGS_RULES

    performance: PerformanceSettings = Field(default_factory=PerformanceSettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    max_model_size: int | None
    cache_dir: Path
    ageing_ms: float


def registry_factories(
    settings: RegistrySettings, devices: DeviceManager, pool: TensorPool, is_alone: bool = False
) -> dict[str, Callable[[], Registry]]:
    """Return framework → function that creates its registry. `pool`: for large batches and for sampling. `is_alone`:
    the process has one model.

    A framework is imported when its first model is loaded: a server with only ONNX models never imports torch or
    transformers, one with only PyTorch models never imports onnxruntime.
    """
    enable_memory_mapping = settings.memory.enable_memory_mapping
    copies = QuantizedCopies(settings.cache_dir)

    def with_task(instances: Sequence[BatchModel], entry: OnnxModelEntry, folder: Path) -> list[BatchModel] | None:
        # Only graphs of tasks need torch and transformers.
        from frameworks.pytorch.tasks import graphs

        return graphs.with_task(instances, entry, folder)

    def create_onnx() -> Registry:
        from frameworks.onnx.registry import OnnxRegistry, TorchSide

        registry = OnnxRegistry(
            devices,
            settings.performance,
            settings.max_model_size,
            copies,
            enable_memory_mapping,
            PooledArrays(pool),
            TorchSide(with_task, pytorch_beside_graphs),
        )
        registry.is_alone = is_alone
        return registry

    @cache
    def create_pytorch() -> Registry:
        from frameworks.pytorch.registry import TorchRegistry

        return TorchRegistry(
            settings.performance,
            settings.max_model_size,
            copies,
            enable_memory_mapping,
            pool,
            settings.ageing_ms / 1000,
        )

    @cache
    def pytorch_beside_graphs() -> Registry:
        # As the loader does with the frameworks that it imports.
        registry = create_pytorch()
        freeze()
        return registry

    return {"onnx": create_onnx, "pytorch": create_pytorch}
