"""The same graphs on a CUDA device; skipped without a device or without ONNX Runtime's CUDA provider."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.registry import OnnxRegistry
from frameworks.quantization.copies import QuantizedCopies
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


def on_cuda(path: Path, *, grant_bytes: int | None = None, enable_tensorrt: bool = False, **entry: Any) -> OnnxModel:
    """Load on the first CUDA device, as in a process of the model, without warm-up."""
    devices = DeviceManager(SystemProbe())
    performance = PerformanceSettings(max_batch_size=6, enable_tensorrt=enable_tensorrt)
    registry = OnnxRegistry(devices, performance, 2**30, QuantizedCopies(path / "cache"))
    registry.is_alone = True
    settings = OnnxModelEntry(name="m", path=path, **entry)
    device = replace(devices.candidates("m", registry.needs(settings, path))[0], grant_bytes=grant_bytes)
    [model] = registry.load(settings, path, device)
    assert isinstance(model, OnnxModel)
    return model


def matmuls(width: int = 64, layers: int = 8) -> onnx.ModelProto:
    """x [n, width] → y: a chain of matmuls and tanh, with small weights."""
    draw = np.random.default_rng(0)
    weights = {f"w{i}": (draw.standard_normal((width, width)) / width**0.5).astype(np.float32) for i in range(layers)}
    nodes = []
    for i in range(layers):
        nodes.append(helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"h{i + 1}" if i + 1 < layers else "y"]))
    shape = ("n", width)
    return onnx_graphs.model_of(nodes, [("x", "float32", shape)], [("y", "float32", shape)], weights)


@pytest.mark.parametrize("graph", [onnx_graphs.add(("n", 64)), matmuls()], ids=["add", "matmuls"])
def test_captured_graphs_on_gpu_equal_cpu(tmp_path: Path, graph: onnx.ModelProto) -> None:
    path = onnx_graphs.save(graph, tmp_path)
    model, plain = on_cuda(tmp_path, cuda_graph=True, execution_providers=["CUDA"]), onnx_graphs.session(path)
    model.warm_up()
    assert model.spec.graphs == "up to 6 rows"
    draw = np.random.default_rng(1)
    # Requests come from other threads than the load; 9 rows have no graph.
    with ThreadPoolExecutor(2) as workers:
        for rows in (1, 2, 3, 6, 5, 9, 4, 1):
            given = {each.name: draw.standard_normal((rows, 64)).astype(np.float32) for each in plain.get_inputs()}
            answer = workers.submit(model.infer, TensorBatch({**given})).result()
            for output, wanted in zip(plain.get_outputs(), plain.run(None, given), strict=True):
                np.testing.assert_allclose(answer[output.name], wanted, rtol=1e-2, atol=1e-3)  # type: ignore[arg-type]
    model.close()


def test_graph_with_cpu_nodes_is_not_captured(tmp_path: Path) -> None:
    nodes = [helper.make_node("Det", ["x"], ["d"]), helper.make_node("Tanh", ["d"], ["y"])]
    graph = onnx_graphs.model_of(nodes, [("x", "float32", ("n", 2, 2))], [("y", "float32", ("n",))])
    onnx_graphs.save(graph, tmp_path)
    with pytest.raises(InvalidModel, match="cuda_graph: expected a graph whose nodes all run on CUDA"):
        on_cuda(tmp_path, cuda_graph=True, execution_providers=["CUDA"])


def test_arena_stays_below_its_grant(tmp_path: Path) -> None:
    onnx_graphs.save(matmuls(), tmp_path)
    model = on_cuda(tmp_path, grant_bytes=64 * 1024**2, execution_providers=["CUDA"])
    model.warm_up()
    with pytest.raises(OutOfMemory, match="the batch does not fit into memory"):
        model.infer(TensorBatch({"x": np.zeros((2**20, 64), np.float32)}))
    answer = model.infer(TensorBatch({"x": np.zeros((2, 64), np.float32)}))
    assert np.asarray(answer["y"]).shape == (2, 64)
    model.close()


@pytest.mark.skipif(
    "TensorrtExecutionProvider" not in ort.get_available_providers(), reason="this onnxruntime has no TensorRT"
)
def test_tensorrt_keeps_engines_below_cache_dir(tmp_path: Path) -> None:
    path = onnx_graphs.save(matmuls(), tmp_path)
    model = on_cuda(tmp_path, enable_tensorrt=True)
    if model.spec.providers[0] != "TensorrtExecutionProvider":
        pytest.skip("TensorRT is not installed")
    model.warm_up()
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    answer = model.infer(TensorBatch({"x": x}))
    np.testing.assert_allclose(answer["y"], onnx_graphs.session(path).run(None, {"x": x})[0], atol=1e-2)  # type: ignore[arg-type]
    model.close()
    engines = [*(tmp_path / "cache" / "tensorrt").rglob("*.engine")]
    assert len(engines) == 1
