"""Large outputs are written into leased buffers and equal those of a plain run."""

import tracemalloc
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from frameworks.core.devices import DeviceManager
from frameworks.core.errors import InvalidInput
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.onnx.binding import OutputBinding
from frameworks.onnx.registry import OnnxRegistry
from frameworks.onnx.value_types import read_type
from frameworks.types import TEXT_OUTPUT, Array, TensorBatch, TokenBatch, Value, ValueSpec
from memory.pooled_arrays import PAYS_FROM_BYTES, PooledArrays
from memory.settings import MemorySettings
from memory.tensor_pool import HOST, PoolStats, TensorPool
from tests.frameworks.models.loading import GIB, NO_COPIES, load_onnx, placed
from tests.support.alike import check_alike
from tests.support.fake_probe import FakeProbe
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.onnx_graphs import model_of
from tests.support.models.text_files import write_tokenizer

WIDTH = 2**18
ROWS = PAYS_FROM_BYTES // (4 * WIDTH)


class Bound:
    """A model with a pool of its own."""

    def __init__(self, path: Path) -> None:
        self.pool = TensorPool(MemorySettings())
        devices = DeviceManager(FakeProbe())
        registry = OnnxRegistry(
            devices, PerformanceSettings(intra_op_threads=1), GIB, NO_COPIES, arrays=PooledArrays(self.pool)
        )
        self.model = placed(registry, OnnxModelEntry(name="m", path=path), path, devices)

    @property
    def stats(self) -> PoolStats:
        return self.pool.stats()[HOST]

    def infer(self, inputs: dict[str, Value], *output_names: str) -> dict[str, Value]:
        return self.model.infer(TensorBatch(inputs, output_names or None))


def bound(graph: onnx.ModelProto, folder: Path) -> Bound:
    return Bound(onnx_graphs.save(graph, folder))


def rows_of(count: int, width: int = WIDTH) -> Array:
    return np.random.default_rng(count).standard_normal((count, width), np.float32)


def sines(shape: onnx_graphs.Shape) -> onnx.ModelProto:
    """Return x → its sine, and its mean over a row."""
    nodes = [helper.make_node("Sin", ["x"], ["sine"]), helper.make_node("ReduceMean", ["x"], ["mean"])]
    return model_of(nodes, [("x", "float32", shape)], [("sine", "float32", shape), ("mean", "float32", (1, 1))])


@pytest.mark.parametrize(
    "shape", [("n", WIDTH), ("n", "m"), (None, WIDTH), (ROWS + 1, WIDTH)], ids=["rows", "all", "unnamed", "fixed"]
)
def test_leased_outputs_equal_plain_run(shape: onnx_graphs.Shape, tmp_path: Path) -> None:
    bound_model, x = bound(sines(shape), tmp_path), rows_of(ROWS + 1)
    sine, mean = onnx_graphs.session(tmp_path / "model.onnx").run(None, {"x": x})
    for _ in range(3):
        outputs = bound_model.infer({"x": x})
        assert list(outputs) == ["sine", "mean"]
        check_alike(np.asarray(outputs["sine"]), sine)
        check_alike(np.asarray(outputs["mean"]), mean)
        assert bound_model.stats.leases == 1
        del outputs
    assert (bound_model.stats.misses, bound_model.stats.hits, bound_model.stats.leases) == (1, 2, 0)


def test_small_or_unrequested_output_takes_no_lease(tmp_path: Path) -> None:
    bound_model = bound(sines(("n", WIDTH)), tmp_path)
    bound_model.infer({"x": rows_of(ROWS - 1)})
    bound_model.infer({"x": rows_of(ROWS)}, "mean")
    assert (bound_model.stats.misses, bound_model.stats.hits) == (0, 0)
    bound_model.infer({"x": rows_of(ROWS)}, "sine")
    assert bound_model.stats.misses == 1


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "int64", "bool"])
def test_output_of_numpy_dtype_is_leased(dtype: str, tmp_path: Path) -> None:
    bound_model = bound(onnx_graphs.identity(dtype), tmp_path)
    x = (np.arange(PAYS_FROM_BYTES) % 3).astype(dtype)
    np.testing.assert_array_equal(np.asarray(bound_model.infer({"x": x})["y"]), x, strict=True)
    assert bound_model.stats.misses == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "string"])
def test_output_of_other_dtype_takes_no_lease(dtype: str, tmp_path: Path) -> None:
    bound_model = bound(onnx_graphs.identity(dtype), tmp_path)
    x = np.ones(PAYS_FROM_BYTES // 2, np.float32) if dtype == "bfloat16" else np.full(PAYS_FROM_BYTES // 8, "a", object)
    assert (np.asarray(bound_model.infer({"x": x})["y"]) == x).all()
    assert bound_model.stats.misses == 0


def test_strided_input_is_read(tmp_path: Path) -> None:
    bound_model, x = bound(sines(("n", WIDTH)), tmp_path), rows_of(ROWS, 2 * WIDTH)[:, ::2]
    (sine,) = onnx_graphs.session(tmp_path / "model.onnx").run(["sine"], {"x": x.copy()})
    check_alike(np.asarray(bound_model.infer({"x": x})["sine"]), sine)


def test_wrong_declared_shape_switches_leases_off(tmp_path: Path) -> None:
    """The graph returns half of the rows, and the first dimension has no name."""
    nodes = [helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])]
    numbers = {"start": [0], "end": [2**62], "axis": [0], "step": [2]}
    weights = {name: np.array(value, np.int64) for name, value in numbers.items()}
    shape = (None, WIDTH)
    bound_model = bound(model_of(nodes, [("x", "float32", shape)], [("y", "float32", shape)], weights), tmp_path)
    x = rows_of(2 * ROWS)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(bound_model.infer({"x": x})["y"]), x[::2], strict=True)
    assert (bound_model.stats.misses, bound_model.stats.hits, bound_model.stats.leases) == (1, 0, 0)


def test_refused_input_raises_and_frees_lease(tmp_path: Path) -> None:
    bound_model, plain = bound(onnx_graphs.add(("n", WIDTH)), tmp_path), load_onnx(tmp_path)
    wrong: dict[str, Value] = {"a": rows_of(ROWS), "b": rows_of(ROWS + 1)}
    messages = []
    for infer in (bound_model.model.infer, plain.infer):
        with pytest.raises(InvalidInput) as caught:
            infer(TensorBatch(wrong))
        messages.append(caught.value.message)
        del caught
    assert messages[0] == messages[1]
    assert bound_model.stats.leases == 0
    right = bound_model.infer({"a": rows_of(ROWS), "b": rows_of(ROWS)}, "sum")
    np.testing.assert_array_equal(np.asarray(right["sum"]), 2 * rows_of(ROWS), strict=True)
    assert bound_model.stats.hits == 1


def test_steady_state_allocates_no_output(tmp_path: Path) -> None:
    bound_model, inputs = bound(sines(("n", WIDTH)), tmp_path), {"x": rows_of(ROWS)}
    bound_model.infer(dict(inputs))
    tracemalloc.start()
    try:
        for _ in range(5):
            bound_model.infer(dict(inputs))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < PAYS_FROM_BYTES / 16
    assert (bound_model.stats.misses, bound_model.stats.hits) == (1, 5)


def test_hidden_states_are_leased_until_pooling(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    onnx_graphs.save(onnx_encoders.encoder(), tmp_path)
    bound_model, plain = Bound(tmp_path), load_onnx(tmp_path)
    hidden = next(spec.shape for spec in bound_model.model.spec.outputs if spec.shape and len(spec.shape) == 3)
    tokens = PAYS_FROM_BYTES // 4 // hidden[-1] // 64 + 1
    batch = TokenBatch([[2, 5, 3] * (tokens // 3 + 1 - i % 2) for i in range(64)])
    for _ in range(3):
        rows = bound_model.model.infer(batch)[TEXT_OUTPUT]
        assert bound_model.stats.leases == 0
        check_alike(np.asarray(rows), np.asarray(plain.infer(batch)[TEXT_OUTPUT]))
    assert (bound_model.stats.misses, bound_model.stats.hits) == (1, 2)


class OnDevice:
    """A session on the CPU that reports another provider, and notes the calls of its bindings."""

    def __init__(self, session: ort.InferenceSession, error: Exception | None = None) -> None:
        self._session = session
        self._error = error
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def io_binding(self) -> Any:
        binding = self._session.io_binding()
        for name in ("bind_output", "synchronize_inputs", "synchronize_outputs"):
            setattr(binding, name, self._noted(name, getattr(binding, name)))
        return binding

    def run_with_iobinding(self, *arguments: Any) -> None:
        self.calls.append("run")
        if self._error is not None:
            raise self._error
        self._session.run_with_iobinding(*arguments)

    def run(self, *arguments: Any) -> Any:
        self.calls.append("run again")
        return self._session.run(*arguments)

    def _noted(self, name: str, plain: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(f"{name} {arguments[0]}" if arguments else name)
            return plain(*arguments)

        return call


def on_device(graph: onnx.ModelProto, error: Exception | None = None) -> tuple[OnDevice, OutputBinding]:
    session = OnDevice(onnx_graphs.session(graph), error)
    outputs = [ValueSpec(each.name, read_type(each)) for each in session.get_outputs()]
    arrays = PooledArrays(TensorPool(MemorySettings()))
    return session, OutputBinding(cast("ort.InferenceSession", session), outputs, arrays)


def run_bound(session: OnDevice, binding: OutputBinding, x: Array, *names: str) -> dict[str, Value] | None:
    return binding.run(cast("ort.InferenceSession", session), {"x": x}, names, ort.RunOptions())


def test_device_copies_only_requested_outputs() -> None:
    session, binding = on_device(sines(("n", WIDTH)))
    x = rows_of(ROWS)
    outputs = run_bound(session, binding, x, "sine")
    assert outputs is not None
    check_alike(np.asarray(outputs["sine"]), np.sin(x))
    assert session.calls == ["bind_output sine", "run"]


@pytest.mark.parametrize(
    "message",
    [
        "Available memory of 19968 is smaller than requested bytes of 1572864",
        "CUDA failure 700: an illegal memory access was encountered ; GPU=0",
        "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED",
        "CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED",
    ],
)
def test_failed_device_does_not_run_twice(message: str) -> None:
    session, binding = on_device(sines(("n", WIDTH)), RuntimeError(message))
    with pytest.raises(RuntimeError, match=message):
        run_bound(session, binding, rows_of(ROWS), "sine")
    assert session.calls[-1] == "run"


def test_device_runs_again_for_other_shape() -> None:
    session, binding = on_device(sines(("n", WIDTH)), RuntimeError("Shape mismatch attempting to re-use buffer"))
    outputs = run_bound(session, binding, rows_of(ROWS), "sine")
    assert outputs is not None
    check_alike(np.asarray(outputs["sine"]), np.sin(rows_of(ROWS)))
    assert session.calls[-2:] == ["run", "run again"]


BOUND_DTYPES = ("float16", "float32", "float64", "int8", "int32", "uint64", "bool")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Bound, ort.InferenceSession]]:
    """For each dtype a graph of two copies of its input [n, m], bound and plain."""
    made = {}
    for dtype in BOUND_DTYPES:
        shape = ("n", "m")
        nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Transpose", ["x"], ["z"])]
        graph = model_of(nodes, [("x", dtype, shape)], [("y", dtype, shape), ("z", dtype, ("m", "n"))])
        made[dtype] = bound(graph, tmp_path_factory.mktemp(dtype)), onnx_graphs.session(graph)
    return made


@given(
    dtype=st.sampled_from(BOUND_DTYPES),
    rows=st.integers(0, 9),
    columns=st.sampled_from([0, 1, 3, PAYS_FROM_BYTES // 16, PAYS_FROM_BYTES // 2]),
    names=st.lists(st.sampled_from(["y", "z"]), unique=True),
)
def test_bound_outputs_equal_any_plain_run(
    copies: dict[str, tuple[Bound, ort.InferenceSession]], dtype: str, rows: int, columns: int, names: list[str]
) -> None:
    bound_model, plain = copies[dtype]
    x = (np.arange(rows * columns) % 2).reshape(rows, columns).astype(dtype)
    wanted = dict(zip(names or ["y", "z"], plain.run(names or None, {"x": x}), strict=True))
    outputs = bound_model.infer({"x": x}, *names)
    assert list(outputs) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(np.asarray(outputs[name]), value, strict=True)
    del outputs
    assert bound_model.stats.leases == 0
