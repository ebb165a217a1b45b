"""Which graphs are captured, and the bucket of a number of rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.onnx.cuda.graph_policy import (
    bucket_for,
    buckets_of,
    describe_graphs,
    has_free_rows,
    reason_not_capturable,
    reason_not_captured,
)
from frameworks.types import ModelSpec, OptionalType, SequenceType, TensorType, ValueSpec


def spec_of(shape: tuple[int, ...] | None, dtype: str = "float32", **others: Any) -> ModelSpec:
    given = ValueSpec("x", TensorType(dtype, shape))
    returned = ValueSpec("y", TensorType("float32", shape))
    fields: dict[str, Any] = {"inputs": (given,), "outputs": (returned,)} | others
    return ModelSpec(framework="onnx", task="tensor", device="cuda:0", dtype="float32", memory_bytes=0, **fields)


@pytest.mark.parametrize(
    ("max_rows", "buckets"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12)), (32, (1, 2, 4, 8, 16, 32))],
)
def test_buckets_are_powers_of_two(max_rows: int, buckets: tuple[int, ...]) -> None:
    assert buckets_of(max_rows) == buckets


@given(st.integers(1, 4096), st.integers(-1, 5000))
def test_bucket_is_smallest_that_holds_rows(max_rows: int, rows: int) -> None:
    buckets = buckets_of(max_rows)
    assert list(buckets) == sorted(set(buckets))
    assert len(buckets) <= max_rows.bit_length() + 1
    found = bucket_for(rows, buckets)
    holding = [each for each in buckets if each >= rows > 0]
    assert found == (min(holding) if holding else None)
    # At most half of the rows are padding.
    assert found is None or found < 2 * rows


@pytest.mark.parametrize("shape", [(-1,), (-1, 3, 224, 224), (4, 3), (), (1,)])
def test_free_rows_and_fixed_shapes_are_capturable(shape: tuple[int, ...]) -> None:
    spec = spec_of(shape)
    assert reason_not_capturable(spec, frozenset({"Gemm", "com.microsoft.Gelu"})) is None
    assert reason_not_captured(spec) is None
    assert has_free_rows(spec) is (shape[:1] == (-1,))


@pytest.mark.parametrize("operator", ["If", "Loop", "Scan", "SequenceMap"])
def test_control_flow_is_refused_by_name(operator: str) -> None:
    reason = reason_not_capturable(spec_of((-1,)), frozenset({"Add", operator}))
    assert reason == (f"expected a graph without control flow, got {operator}; export it without, or remove cuda_graph")


@pytest.mark.parametrize("shape", [(-1, -1), (3, -1), (-1, 3, -1), None])
def test_other_free_dimension_is_refused_by_name(shape: tuple[int, ...] | None) -> None:
    shown = "undeclared shape" if shape is None else f"shape {list(shape)} (-1 is free)"
    reason = reason_not_capturable(spec_of(shape), frozenset())
    assert reason is not None
    assert reason.startswith("expected inputs whose only free dimension is the first, the rows, got ")
    assert f'"x" of {shown}; export the graph with fixed sizes, or remove cuda_graph' in reason


@pytest.mark.parametrize("dtype", ["string", "bfloat16"])
def test_dtype_that_numpy_lacks_is_refused(dtype: str) -> None:
    reason = reason_not_capturable(spec_of((-1,), dtype), frozenset())
    assert reason is not None
    assert f'got "x" of type {TensorType(dtype, (-1,))}; remove cuda_graph' in reason


def test_output_that_is_no_tensor_is_refused() -> None:
    sequence = ValueSpec("s", SequenceType(TensorType("float32", None)))
    reason = reason_not_capturable(spec_of((-1,), outputs=(sequence,)), frozenset())
    assert reason is not None
    assert 'got "s" of type' in reason


def test_optional_inputs_do_not_matter() -> None:
    optional = ValueSpec("o", OptionalType(TensorType("float32", (-1, -1))), required=False)
    inputs = (*spec_of((-1,)).inputs, optional)
    assert reason_not_capturable(spec_of((-1,), inputs=inputs), frozenset()) is None
    reason = reason_not_capturable(spec_of((-1,), inputs=(optional,)), frozenset())
    assert reason == "expected a graph with inputs, got none; remove cuda_graph"


def test_graph_that_was_not_warmed_up_is_refused() -> None:
    reason = reason_not_captured(spec_of((-1,), unwarmed_because="set input_shape"))
    assert reason is not None
    assert "got one that was not run (set input_shape); give it values, or remove cuda_graph" in reason


def test_dependent_rows_are_refused_where_free() -> None:
    reason = reason_not_captured(spec_of((-1,), unbatched_because="it is recurrent"))
    assert reason is not None
    assert "(it is recurrent); export it with a fixed number of rows, or remove cuda_graph" in reason
    assert reason_not_captured(spec_of((4,), unbatched_because="it is recurrent")) is None


def test_description_names_rows_or_shape() -> None:
    assert (describe_graphs((1, 2, 4)), describe_graphs(())) == ("up to 4 rows", "the shape of its inputs")
