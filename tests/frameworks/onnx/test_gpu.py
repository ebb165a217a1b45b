"""The same graphs on a CUDA device; skipped without a device or without ONNX Runtime's CUDA provider."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.settings.entries import OnnxModelEntry, PerformanceSettings
from frameworks.onnx.registry import OnnxRegistry
from frameworks.types import TensorBatch
from memory.pooled_arrays import PAYS_FROM_BYTES, PooledArrays
from memory.settings import MemorySettings
from memory.tensor_pool import HOST, TensorPool
from tests.frameworks.models.loading import NO_COPIES, load_onnx, placed, rows_of
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.text_files import TEXTS, write_tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "CUDAExecutionProvider" not in ort.get_available_providers(), reason="this onnxruntime has no CUDA"
    ),
    pytest.mark.skipif(not SystemProbe().accelerators(), reason="no CUDA device"),
]


def test_tensor_graph_on_gpu_equals_cpu(tmp_path: Path) -> None:
    onnx_graphs.save(onnx_graphs.add(), tmp_path)
    model = load_onnx(tmp_path, gpu=True)
    assert model.spec.device.startswith("cuda:")
    assert model.spec.providers[0] == "CUDAExecutionProvider"
    model.warm_up()
    a, b = (np.random.default_rng(i).standard_normal((3, 4)).astype(np.float32) for i in range(2))
    answer = model.infer(TensorBatch({"a": a, "b": b}))
    np.testing.assert_allclose(answer["sum"], a + b, rtol=1e-6)  # type: ignore[arg-type]
    model.close()


@pytest.mark.parametrize("dtype", list(onnx_graphs.ONNX_DTYPES))
def test_every_dtype_returns_from_gpu(tmp_path: Path, dtype: str) -> None:
    model = load_onnx(onnx_graphs.save(onnx_graphs.identity(dtype), tmp_path), gpu=True)
    x = np.array(["a", ""], object) if dtype == "string" else np.array([0, 1], model_dtype(dtype))
    y = model.infer(TensorBatch({"x": x}))["y"]
    assert isinstance(y, np.ndarray)
    assert y.tolist() == x.tolist()
    model.close()


def model_dtype(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype


def test_text_embeddings_on_gpu_equal_cpu(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    onnx_graphs.save(onnx_encoders.encoder(), tmp_path)
    on_cpu, on_cuda = load_onnx(tmp_path, execution_providers=("CPU",)), load_onnx(tmp_path, gpu=True)
    np.testing.assert_allclose(rows_of(on_cuda, list(TEXTS)), rows_of(on_cpu, list(TEXTS)), atol=1e-3)
    on_cuda.close()


def test_large_outputs_use_leased_buffers(tmp_path: Path) -> None:
    width, pool = PAYS_FROM_BYTES // 4, TensorPool(MemorySettings())
    path = onnx_graphs.save(onnx_graphs.add(("n", width)), tmp_path)
    devices = DeviceManager(SystemProbe())
    registry = OnnxRegistry(devices, PerformanceSettings(), 2**30, NO_COPIES, arrays=PooledArrays(pool))
    model = placed(registry, OnnxModelEntry(name="m", path=path), path, devices)
    assert model.spec.device.startswith("cuda:")
    for hits in (0, 2):
        a, b = (np.random.default_rng(hits + i).standard_normal((2, width)).astype(np.float32) for i in range(2))
        answer = model.infer(TensorBatch({"a": a, "b": b}))
        np.testing.assert_allclose(answer["sum"], a + b, rtol=1e-6)  # type: ignore[arg-type]
        np.testing.assert_allclose(answer["product"], a * b, rtol=1e-6)  # type: ignore[arg-type]
        del answer
        stats = pool.stats()[HOST]
        assert (stats.misses, stats.hits, stats.leases) == (2, hits, 0)
    model.close()


def test_disabled_gpu_is_not_used(tmp_path: Path) -> None:
    onnx_graphs.save(onnx_graphs.add(), tmp_path)
    assert load_onnx(tmp_path, gpu=True, execution_providers=("CPU",)).spec.device == "cpu"
