"""Load models as the manager does, on a machine with only a CPU, with one thread."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.settings.entries import OnnxModelEntry, TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.quantization.copies import QuantizedCopies
from frameworks.runtime import BatchModel, ModelEntry, Registry
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import TEXT_OUTPUT, Array, Batch, Value
from tests.support.fake_probe import FakeProbe

if TYPE_CHECKING:
    from frameworks.onnx.model import OnnxModel
    from frameworks.onnx.text_model import OnnxTextModel
    from frameworks.pytorch.encoders.encoder import EncoderModel

GIB = 1024**3
_NO_CACHE = Path("/dev/null/no folder for copies")
NO_COPIES = QuantizedCopies(_NO_CACHE)


def load_onnx(
    path: Path,
    *,
    max_model_bytes: int | None = GIB,
    gpu: bool = False,
    enable_memory_mapping: bool = True,
    cache_dir: Path = _NO_CACHE,
    enable_quantization: bool = True,
    **entry: Any,
) -> "OnnxModel | OnnxTextModel":
    """Load without warm-up. `entry`: the keys of an `[[models.onnx_models]]` table."""
    from frameworks.onnx.model import OnnxModel
    from frameworks.onnx.registry import OnnxRegistry
    from frameworks.onnx.text_model import OnnxTextModel

    devices = DeviceManager(SystemProbe() if gpu else FakeProbe())
    performance = PerformanceSettings(intra_op_threads=1, enable_quantization=enable_quantization)
    copies = QuantizedCopies(cache_dir)
    registry = OnnxRegistry(devices, performance, max_model_bytes, copies, enable_memory_mapping)
    settings = OnnxModelEntry(name="m", path=path, **entry)
    model = placed(registry, settings, path, devices)
    assert isinstance(model, OnnxModel | OnnxTextModel)
    return model


def load_torch(path: Path, **options: Any) -> "EncoderModel":
    """Load an encoder, as `load_torch_model`."""
    from frameworks.pytorch.encoders.encoder import EncoderModel

    model = load_torch_model(path, **options)
    assert isinstance(model, EncoderModel)
    return model


def load_torch_model(path: Path, **options: Any) -> BatchModel:
    """Return the first of the instances that `load_torch_instances` loads."""
    return load_torch_instances(path, **options)[0]


def load_torch_instances(
    path: Path,
    *,
    max_model_bytes: int | None = GIB,
    gpu: bool = False,
    enable_memory_mapping: bool = True,
    cache_dir: Path = _NO_CACHE,
    enable_quantization: bool = True,
    **entry: Any,
) -> list[BatchModel]:
    """Load without warm-up. `entry`: the keys of a `[[models.torch_models]]` table."""
    from frameworks.pytorch.registry import TorchRegistry

    devices = DeviceManager(SystemProbe() if gpu else FakeProbe())
    performance = PerformanceSettings(intra_op_threads=2, enable_quantization=enable_quantization)
    registry = TorchRegistry(performance, max_model_bytes, QuantizedCopies(cache_dir), enable_memory_mapping)
    return placed_instances(registry, TorchModelEntry(name="m", path=path, **entry), path, devices)


def placed(registry: Registry, settings: ModelEntry, path: Path, devices: DeviceManager) -> BatchModel:
    """Load a batch model on its first candidate device, and return its first instance."""
    return placed_instances(registry, settings, path, devices)[0]


def placed_instances(registry: Registry, settings: ModelEntry, path: Path, devices: DeviceManager) -> list[BatchModel]:
    """Load a batch model on its first candidate device, and return its instances."""
    device = devices.candidates(settings.name, registry.needs(settings, path))[0]
    return cast(list[BatchModel], registry.load(settings, path, device))


def listed(value: Value) -> Any:
    """Return the numbers of a tensor as a list."""
    assert isinstance(value, np.ndarray)
    return value.tolist()


def rows_of(model: BatchModel, texts: list[str], prompt: str | None = None) -> Array:
    """Return the raw rows of texts in one batch, not normalised. `prompt`: None for that of the model's files."""
    assert isinstance(model.tokenizer, TextTokenizer)
    token_ids = model.tokenizer.tokenize(texts, truncate=True, prompt=prompt)
    rows = model.infer(model.tokenizer.batch_of(token_ids, prompt))[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    return rows


async def answered_through_a_dispatcher(model: BatchModel, batch: Batch) -> tuple[Array, Counter[int]]:
    """Return the text rows of a model behind a dispatcher, and the sizes of split batches."""
    worker, split = BatchWorker("m", model), Counter[int]()
    dispatcher = Dispatcher("m", [worker], model.spec, BatchLimits(max_rows=256), 1.0, BatchCounts(Counter(), split))
    rows = (await dispatcher.submit(batch))[TEXT_OUTPUT]
    await dispatcher.close()
    assert isinstance(rows, np.ndarray)
    return rows, split
