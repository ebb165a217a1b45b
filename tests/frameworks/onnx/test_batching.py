"""Graphs may be batched if rows give the same results together; others state the reason."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from frameworks.onnx.batching import reason_not_batched
from frameworks.scheduling.merging.rows import merge, signature_of, split_outputs
from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorBatch, TensorType, Value, ValueSpec
from tests.support.models import onnx_graphs
from tests.support.models.onnx_graphs import model_of

FREE = ("n", 4)


def over_rows(op: str, shape: onnx_graphs.Shape = FREE, **attributes: Any) -> onnx.ModelProto:
    """Return x [n, 4] → y by one operator over the first axis."""
    weights = {"axes": np.array([0], np.int64)} if op.startswith("Reduce") else {}
    node = helper.make_node(op, ["x", *weights], ["y"], **attributes)
    return model_of([node], [("x", "float32", FREE)], [("y", "float32", shape)], weights)


def centred() -> onnx.ModelProto:
    """Return x [n, 4] → y = x minus the mean of the batch; a single row does not show it."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    return model_of(nodes, [("x", "float32", FREE)], [("y", "float32", FREE)], {"axes": np.array([0], np.int64)})


def one_row_only() -> onnx.ModelProto:
    """Return x [n, 4] → y [n, 4] through a shape of one row, which only a run shows."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["one_row", "nothing"], ["floats"]),
        helper.make_node("Cast", ["floats"], ["shape"], to=onnx.TensorProto.INT64),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"zero": np.array(0, np.float32), "one_row": np.array([1, 4], np.float32)}
    return model_of(nodes, [("x", "float32", FREE)], [("y", "float32", FREE)], weights)


def first_row() -> onnx.ModelProto:
    """Return x [n, 4] → y [m, 4]: the first row only."""
    node = helper.make_node("Compress", ["x", "first"], ["y"], axis=0)
    return model_of([node], [("x", "float32", FREE)], [("y", "float32", ("m", 4))], {"first": np.array([True])})


def numbers(dtype: str, shape: tuple[int, ...], first: int) -> Array:
    """Return inputs that differ for each `first`."""
    values = (first + np.arange(int(np.prod(shape)))).reshape(shape)
    return values.astype(str).astype(object) if dtype == "string" else values.astype(NUMPY_DTYPES[dtype])


@pytest.mark.parametrize(
    ("graph", "inputs"),
    [
        (onnx_graphs.add(), {"a": ("float32", (4,)), "b": ("float32", (4,))}),
        (onnx_graphs.image_mean(), {"image": ("float32", (3, 224, 224))}),
        (onnx_graphs.zip_map(), {"scores": ("float32", (3,))}),
        (onnx_graphs.zip_map([5, 7]), {"scores": ("float32", (2,))}),
        (onnx_graphs.sequence_out(), {"x": ("float32", (2,))}),
        (onnx_graphs.scaled(), {"x": ("float32", ())}),
        (onnx_graphs.free("n", "length"), {"x": ("float32", (5, 3))}),
        *((onnx_graphs.identity(dtype), {"x": (dtype, ())}) for dtype in onnx_graphs.ONNX_DTYPES),
    ],
)
def test_batched_rows_equal_rows_alone(
    loaded: Any, graph: onnx.ModelProto, inputs: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    model = loaded(graph)
    assert (model.spec.batched_inputs, model.spec.unbatched_because) == (frozenset(inputs), None)
    requests = [
        TensorBatch({name: numbers(dtype, (rows, *shape), rows) for name, (dtype, shape) in inputs.items()})
        for rows in (1, 3, 2)
    ]
    signatures = [signature_of(request, model.spec.batched_inputs) for request in requests]
    assert all(signature.shares for signature in signatures)
    assert len({signature.shape for signature in signatures}) == 1
    outputs = model.infer(merge(requests))
    for request, got in zip(
        requests, split_outputs(outputs, [signature.rows for signature in signatures]), strict=True
    ):
        for name, alone in model.infer(request).items():
            assert plain(got[name]) == plain(alone)


def plain(value: Value) -> object:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return np.asarray(value).tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("dtype", "within", "beyond"), [("float16", 5e-3, 5e-2), ("float32", 5e-5, 1e-3)])
def test_rows_agree_within_precision_of_dtype(dtype: str, within: float, beyond: float) -> None:
    def because(off: float) -> str | None:
        def run(inputs: dict[str, Value]) -> dict[str, Value]:
            x = inputs["x"]
            assert isinstance(x, np.ndarray)
            return {"y": x * np.asarray(1 + off * (len(x) > 1), x.dtype)}

        kind = TensorType(dtype, (-1, 4))
        spec = ModelSpec("onnx", "tensor", (ValueSpec("x", kind),), (ValueSpec("y", kind),), "cpu", dtype, 0)
        return reason_not_batched(spec, {"x": (1, 4)}, run)

    assert because(within) is None
    assert because(beyond) == 'output "y" of two rows differs from its single runs'


def test_trial_with_invalid_index_keeps_batching(loaded: Any) -> None:
    assert loaded(onnx_graphs.gather()).spec.batched_inputs == {"indices"}


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (onnx_graphs.identity(shape=(1, 4)), 'input "x" has no free first dimension'),
        (onnx_graphs.identity(shape=(2, "n")), 'input "x" has no free first dimension'),
        (onnx_graphs.image_mean(rows=1), 'input "image" has no free first dimension'),
        (onnx_graphs.identity(shape=()), 'input "x" has no free first dimension'),
        (onnx_graphs.identity(shape=None), 'input "x" has no free first dimension'),
        (onnx_graphs.map_in(), 'input "counts" has no free first dimension'),
        (over_rows("ReduceSum", (1, 4)), 'output "y" has no free first dimension'),
        (over_rows("ReduceSum", (4,), keepdims=0), 'output "y" has no free first dimension'),
        (over_rows("ReduceMax", ("m", 4)), 'output "y" has no free first dimension'),
        (first_row(), 'output "y" of two rows differs from its single runs'),
        (over_rows("Softmax", axis=0), 'output "y" of two rows differs from its single runs'),
        (centred(), 'output "y" of two rows differs from its single runs'),
        (onnx_graphs.concat(), 'output "joined" of two rows differs from its single runs'),
        (onnx_graphs.two_lengths(), 'output "y" of two rows differs from its single runs'),
        (one_row_only(), "a trial with two rows failed: inputs: the graph refuses these values: "),
        (onnx_graphs.pairs(), "it was not warmed up"),
        (onnx_graphs.sequence_in(), None),
        (onnx_graphs.optional_in(), None),
    ],
)
def test_unbatched_graph_has_a_reason(loaded: Any, graph: onnx.ModelProto, reason: str | None) -> None:
    spec = loaded(graph).spec
    assert spec.batched_inputs == frozenset()
    assert spec.unbatched_because is not None
    assert spec.unbatched_because.startswith(reason or "")


def test_graph_without_inputs_is_not_batched() -> None:
    outputs = (ValueSpec("y", TensorType("float32", (-1,))),)
    spec = ModelSpec("onnx", "tensor", (), outputs, "cpu", "float32", memory_bytes=0)
    assert reason_not_batched(spec, {}, lambda inputs: inputs) == "the graph has no inputs"


def test_graph_failing_on_one_row_is_not_batched(loaded: Any) -> None:
    spec = loaded(onnx_graphs.pairs(), input_shape=(2,)).spec
    assert spec.batched_inputs == frozenset()
    assert spec.unbatched_because is not None
    assert spec.unbatched_because.startswith("a trial with two rows failed")
