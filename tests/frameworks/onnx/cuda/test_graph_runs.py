"""Models that run from tensors at fixed addresses, filled up to a bucket of rows, equal a plain run.

ONNX Runtime's CPU provider runs the same code: it captures nothing, but reads and writes the same fixed tensors.
"""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from frameworks.core.errors import InvalidInput, InvalidModel, ModelFailed, OutOfMemory
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.onnx.cuda.graph_policy import buckets_of
from frameworks.onnx.cuda.graph_runs import FixedRun, GraphRuns
from frameworks.onnx.graph_summary import read_graph_summary
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.providers import GraphDevice, ProviderChoice
from frameworks.onnx.text_model import OnnxTextModel, with_text
from frameworks.types import TEXT_OUTPUT, Array, TensorBatch, TokenBatch, Value
from tests.frameworks.models.loading import load_onnx
from tests.support.alike import check_alike
from tests.support.models import onnx_costly_graphs, onnx_encoders, onnx_graphs
from tests.support.models.onnx_graphs import model_of
from tests.support.models.text_files import write_tokenizer

WEIGHT_BYTES = 1000


def open_model(graph: onnx.ModelProto, folder: Path, max_rows: int = 6, **entry: Any) -> OnnxModel:
    """Return a model whose runs are captured on the CPU, not warmed up."""
    file = onnx_graphs.save(graph, folder)
    device = GraphDevice("cpu", 0, max_rows)
    choice = ProviderChoice([("CPUExecutionProvider", {})], None, captures=device)
    settings = OnnxModelEntry(name="m", path=folder, **entry)
    return OnnxModel(onnx_graphs.session(file), file, choice, WEIGHT_BYTES, settings, read_graph_summary(file))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Open and warm up models, and close them."""
    models: list[OnnxModel] = []

    def warm(graph: onnx.ModelProto, max_rows: int = 6, **entry: Any) -> OnnxModel:
        models.append(open_model(graph, tmp_path, max_rows, **entry))
        models[-1].warm_up()
        return models[-1]

    yield warm
    for model in models:
        model.close()


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnnxModel]:
    """A model of sums and products of [n, 4]."""
    model = open_model(onnx_graphs.add(), tmp_path_factory.mktemp("sums"))
    model.warm_up()
    yield model
    model.close()


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([(), ("sum",), ("product",), ("product", "sum")]))))
def test_any_rows_and_outputs_equal_plain_run(sums: OnnxModel, requests: list[tuple[int, tuple[str, ...]]]) -> None:
    kept = []
    for number, (rows, names) in enumerate(requests):
        a, b = np.random.default_rng(number).standard_normal((2, rows, 4), np.float32)
        outputs = sums.infer(TensorBatch({"a": a, "b": b}, names or None))
        assert tuple(outputs) == (names or ("sum", "product"))
        kept.append((outputs, {"sum": a + b, "product": a * b}))
    # Later runs write to the same tensors: earlier results must not change.
    for outputs, wanted in kept:
        for name, value in outputs.items():
            np.testing.assert_array_equal(np.asarray(value), wanted[name], strict=True)


@pytest.mark.parametrize("dtype", [name for name in onnx_graphs.ONNX_DTYPES if name not in ("string", "bfloat16")])
@pytest.mark.parametrize("shape", [("n",), ("n", 3), ("n", 2, 2), (3, 2), (2,)])
def test_every_dtype_and_shape_equals_input(dtype: str, shape: onnx_graphs.Shape, opened: Any) -> None:
    model = opened(onnx_graphs.identity(dtype, shape), max_rows=4)
    for rows in (1, 3, 4, 5):
        sizes = tuple(size if isinstance(size, int) else rows for size in shape or ())
        x = (np.arange(math.prod(sizes)).reshape(sizes) % 2).astype(dtype)
        np.testing.assert_array_equal(np.asarray(model.infer(TensorBatch({"x": x}))["y"]), x, strict=True)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, int | None]]:
    """Return (rows of the bucket, rows of the request) of each run from fixed tensors."""
    runs: list[tuple[int | None, int | None]] = []
    plain = FixedRun.run

    def run(self: FixedRun, inputs: Any, output_names: tuple[str, ...], rows: int | None) -> dict[str, Value]:
        runs.append((self._rows, rows))
        return plain(self, inputs, output_names, rows)

    monkeypatch.setattr(FixedRun, "run", run)
    return runs


def x_of(rows: int, dtype: str = "float32") -> dict[str, Value]:
    return {"x": np.arange(rows, dtype=dtype)}


def test_request_takes_smallest_bucket(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(onnx_graphs.identity(), max_rows=6)
    runs = spied(monkeypatch)
    for rows in range(8):
        model.infer(TensorBatch(x_of(rows)))
    assert runs == [(1, 1), (2, 2), (4, 3), (4, 4), (6, 5), (6, 6)]


def test_replay_waits_for_its_inputs(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(onnx_graphs.identity(), max_rows=1)
    [run] = model._graphs._runs.values()
    calls: list[str] = []

    class Session:
        def run_with_iobinding(self, *_: object) -> None:
            calls.append("replay")

    monkeypatch.setattr(run._binding, "synchronize_inputs", lambda: calls.append("wait"))
    monkeypatch.setattr(run, "_session", Session())
    run.run(x_of(1), (), 1)
    assert calls == ["wait", "replay"]


def test_warm_up_captures_largest_bucket_first(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = spied(monkeypatch)
    opened(onnx_graphs.identity(), max_rows=4)
    # Each is captured, then replayed with other values.
    assert runs == [(4, 4), (4, 4), (2, 2), (2, 2), (1, 1), (1, 1)]


def test_each_graph_has_an_id_above_zero(opened: Any) -> None:
    model = opened(onnx_graphs.identity(), max_rows=4)
    options = [run._options.get_run_config_entry("gpu_graph_id") for run in model._graphs._runs.values()]
    assert sorted(options) == ["1", "2", "3"]
    assert model._graphs._eager_options.get_run_config_entry("gpu_graph_id") == "-1"


def test_spec_has_graphs_and_their_memory(opened: Any) -> None:
    model = opened(onnx_graphs.add(), max_rows=4)
    tensors, row_bytes = 4, 16
    assert model.spec.graphs == "up to 4 rows"
    assert model.spec.memory_bytes == WEIGHT_BYTES + sum(buckets_of(4)) * tensors * row_bytes


def test_fixed_shape_has_one_graph(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(onnx_graphs.identity("float32", (3, 2)))
    assert (model.spec.graphs, model.spec.memory_bytes) == ("the shape of its inputs", WEIGHT_BYTES + 2 * 24)
    runs = spied(monkeypatch)
    model.infer(TensorBatch({"x": np.ones((3, 2), np.float32)}))
    assert runs == [(None, None)]


def test_values_of_padding_reach_no_row(opened: Any) -> None:
    """Rows that fill a bucket repeat the first one: zeros could be refused, or divide by zero."""
    nodes = [helper.make_node("Div", ["one", "x"], ["y"])]
    weights = {"one": np.ones(1, np.int32)}
    model = opened(model_of(nodes, [("x", "int32", ("n",))], [("y", "int32", ("n",))], weights), max_rows=8,
                   warm_up=[{"x": [1]}])  # fmt: skip
    graphs = model._graphs
    filled = graphs._runs[8]._filled(np.array([1, 2, 3, 4, 5], np.int32), 5)
    assert filled.tolist() == [1, 2, 3, 4, 5, 1, 1, 1]
    assert np.asarray(model.infer(TensorBatch({"x": np.array([1, -1, 1], np.int32)}))["y"]).tolist() == [1, -1, 1]


def test_strided_input_is_read(sums: OnnxModel) -> None:
    a = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)[::2]
    b = np.asfortranarray(a + 1)
    for rows in (4, 3):
        outputs = sums.infer(TensorBatch({"a": a[:rows], "b": b[:rows]}))
        np.testing.assert_array_equal(np.asarray(outputs["sum"]), a[:rows] + b[:rows])


def test_optional_input_runs_without_graph(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(onnx_graphs.scaled(2.0))
    runs = spied(monkeypatch)
    scaled = model.infer(TensorBatch(x_of(3) | {"factor": np.array([5], np.float32)}))["y"]
    assert (np.asarray(scaled).tolist(), runs) == ([0, 5, 10], [])
    assert np.asarray(model.infer(TensorBatch(x_of(3)))["y"]).tolist() == [0, 2, 4]
    assert runs == [(4, 3)]


@pytest.mark.parametrize(
    "inputs",
    [{}, {"a": 1, "b": 2, "c": 3}, {"a": 2}, {"a": 2, "b": 3}],
    ids=["none", "unknown", "missing", "rows that differ"],
)
def test_refused_inputs_have_error_of_plain_run(sums: OnnxModel, inputs: dict[str, int]) -> None:
    given: dict[str, Value] = {name: np.zeros((rows, 4), np.float32) for name, rows in inputs.items()}
    plain = load_onnx(sums._path)
    messages = []
    for model in (sums, plain):
        with pytest.raises(InvalidInput) as caught:
            model.infer(TensorBatch(dict(given)))
        messages.append(caught.value.message)
    assert messages[0] == messages[1]


@pytest.mark.parametrize("value", [np.zeros((2, 5), np.float32), np.zeros((2, 4)), np.zeros(4, np.float32), [1.0]])
def test_refused_value_has_error_of_plain_run(sums: OnnxModel, value: Value) -> None:
    with pytest.raises(InvalidInput, match="the graph refuses these values"):
        sums.infer(TensorBatch({"a": value, "b": np.zeros((2, 4), np.float32)}))


def test_all_runs_have_one_thread(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    for name in ("_run_here", "_run_eagerly_here", "_capture_here", "_release_here"):
        plain = getattr(GraphRuns, name)

        def noted(self: GraphRuns, *arguments: Any, plain: Any = plain) -> Any:
            threads.add(threading.current_thread().name)
            return plain(self, *arguments)

        monkeypatch.setattr(GraphRuns, name, noted)
    model = opened(onnx_graphs.identity())
    with ThreadPoolExecutor(2) as workers:
        for each in [workers.submit(model.infer, TensorBatch(x_of(rows))) for rows in (1, 9)]:
            each.result()
    model.close()
    assert threads == {"cuda-graph_0"}


def test_closed_model_ends_its_thread(tmp_path: Path) -> None:
    model = open_model(onnx_graphs.identity(), tmp_path)
    model.warm_up()
    assert model._graphs is not None
    [thread] = model._graphs._thread._threads
    model.close()
    assert not thread.is_alive()
    with pytest.raises(ModelFailed, match="closed"):
        model.infer(TensorBatch(x_of(1)))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (onnx_costly_graphs.looping(3, "n"), "expected a graph without control flow, got Loop"),
        (onnx_graphs.free("n", "m"), r'got "x" of shape \[-1, -1, 3\]'),
        (onnx_graphs.identity("string"), 'got "x" of type string; remove cuda_graph'),
    ],
    ids=["loop", "free", "string"],
)
def test_refused_graph_is_named_at_load(graph: onnx.ModelProto, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=rf"model\.onnx: cuda_graph: .*{reason}"):
        open_model(graph, tmp_path)


def test_dependent_rows_are_refused_at_warm_up(tmp_path: Path) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    model = open_model(model_of(nodes, [("x", "float32", ("n", 2))], [("y", "float32", ("n", 2))]), tmp_path)
    with pytest.raises(InvalidModel, match="expected rows that do not depend on each other, got a graph whose rows"):
        model.warm_up()
    model.close()


def test_graph_without_warm_up_is_refused(tmp_path: Path) -> None:
    model = open_model(onnx_graphs.pairs(), tmp_path)
    with pytest.raises(InvalidModel, match="cuda_graph: expected a graph that runs at warm-up, got one that was not"):
        model.warm_up()
    model.close()


def test_replay_that_differs_is_refused(tmp_path: Path) -> None:
    """Random numbers stand for a kernel that a capture freezes: two runs differ."""
    nodes = [helper.make_node("RandomUniformLike", ["x"], ["y"])]
    model = open_model(model_of(nodes, [("x", "float32", (3, 2))], [("y", "float32", (3, 2))]), tmp_path)
    with pytest.raises(InvalidModel, match='expected a replay that equals a run, got another output "y"; remove'):
        model.warm_up()
    model.close()


def test_replay_of_captured_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that reads no new inputs returns the outputs of the capture."""
    monkeypatch.setattr(FixedRun, "_filled", lambda self, value, _: np.zeros_like(value))
    model = open_model(onnx_graphs.identity(), tmp_path)
    with pytest.raises(InvalidModel, match="expected a replay that equals a run"):
        model.warm_up()
    model.close()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("BFCArena: Available memory of 1 is smaller than requested bytes of 2", OutOfMemory),
        ("CUDA failure 900: operation not permitted when stream is capturing", InvalidModel),
    ],
)
def test_failed_capture_is_named(
    message: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {message}")

    monkeypatch.setattr(GraphRuns, "capture", fail)
    model = open_model(onnx_graphs.identity(), tmp_path)
    with pytest.raises(error, match=message.partition(":")[0]):
        model.warm_up()
    model.close()


def test_buckets_beyond_memory_are_named(tmp_path: Path) -> None:
    model = open_model(onnx_graphs.identity("float32", ("n", 2**20)), tmp_path, max_rows=2**40)
    with pytest.raises(OutOfMemory, match="the captured graphs do not fit into memory; lower max_batch_size"):
        model.warm_up()
    model.close()


def test_text_model_of_fixed_length_is_captured(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    graph = onnx_encoders.encoder()
    for value in (*graph.graph.input, *graph.graph.output):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if axis == 1 and not dimension.HasField("dim_value"):
                dimension.dim_value = 8
    captured = with_text([open_model(graph, tmp_path, max_rows=4)], tmp_path / "model.onnx")[0]
    assert isinstance(captured, OnnxTextModel)
    captured.warm_up()
    plain = load_onnx(tmp_path)
    plain.warm_up()
    assert (captured.spec.graphs, plain.spec.graphs) == ("up to 4 rows", None)
    assert captured.spec.memory_bytes > WEIGHT_BYTES
    for rows in (1, 3, 4, 6):
        batch = TokenBatch([[2, 5, 3], [2, 3], [2, 5, 5, 3], [2, 6, 3], [2, 4, 3], [2, 7, 3]][:rows])
        found: Array = np.asarray(captured.infer(batch)[TEXT_OUTPUT])
        check_alike(found, np.asarray(plain.infer(batch)[TEXT_OUTPUT]))
    captured.close()
