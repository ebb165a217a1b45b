"""Graphs may be padded along their sequence axis if padded rows give the same results; others state the reason."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.onnx.batching import try_padding
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.scheduling.merging.rows import merge, signature_of, split_outputs
from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, SequenceSpec, TensorBatch, TensorType, Value, ValueSpec
from tests.frameworks.models.loading import load_onnx
from tests.support.alike import check_alike
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.text_files import write_tokenizer

ENCODER = onnx_encoders.encoder(("last_hidden_state", "sentence_embedding"), vocabulary_size=128)
UNMASKED = onnx_encoders.encoder(("last_hidden_state", "sentence_embedding"), inputs=("input_ids",))
MASKED: dict[str, Any] = {"sequence_axis": 1, "mask_input": "attention_mask"}


def load(graph: onnx.ModelProto, folder: Path, **entry: Any) -> OnnxModel:
    """Load and warm up a graph."""
    model = load_onnx(onnx_graphs.save(graph, folder), **entry)
    assert isinstance(model, OnnxModel)
    model.warm_up()
    return model


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnnxModel]:
    model = load(ENCODER, tmp_path_factory.mktemp("encoder"), **MASKED)
    yield model
    model.close()


@pytest.fixture(scope="module")
def unmasked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnnxModel]:
    model = load(UNMASKED, tmp_path_factory.mktemp("unmasked"), sequence_axis=1)
    yield model
    model.close()


def because(model: OnnxModel) -> str | None:
    assert model.spec.sequence is not None
    return model.spec.sequence.unpadded_because


def answers_together(model: OnnxModel, requests: Sequence[TensorBatch]) -> list[dict[str, Value]]:
    """Return the outputs of requests of one group in one run."""
    spec = model.spec
    outlines = [signature_of(request, spec.batched_inputs, spec.sequence) for request in requests]
    assert all(signature.shares for signature in outlines)
    assert len({signature.shape for signature in outlines}) == 1
    outputs = model.infer(merge(requests, spec.sequence))
    counts, lengths = [signature.rows for signature in outlines], [signature.length for signature in outlines]
    return split_outputs(outputs, counts, lengths, spec.sequence)


def assert_as_alone(model: OnnxModel, requests: Sequence[TensorBatch], relative: float = 1e-5) -> None:
    for request, got in zip(requests, answers_together(model, requests), strict=True):
        alone = model.infer(request)
        assert got.keys() == alone.keys()
        for name, value in alone.items():
            assert np.asarray(got[name]).shape == np.asarray(value).shape
            np.testing.assert_allclose(np.asarray(got[name]), np.asarray(value), relative, relative)


def tokens(rows: int, length: int, seed: int = 0, mask: str = "left out") -> TensorBatch:
    random = np.random.default_rng(seed)
    inputs: dict[str, Value] = {"input_ids": random.integers(0, 128, (rows, length))}
    if mask == "ones":
        inputs["attention_mask"] = np.ones((rows, length), np.int64)
    elif mask == "holes":
        holes = random.integers(0, 2, (rows, length))
        holes[:, 0] = 1
        inputs = {"attention_mask": holes, **inputs}
    return TensorBatch(inputs)


shapes = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(0, 9), st.sampled_from(["left out", "ones", "holes"])),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(shapes)
def test_padded_row_equals_row_alone(encoder: OnnxModel, shapes: list[tuple[int, int, int, str]]) -> None:
    assert_as_alone(encoder, [tokens(*shape) for shape in shapes])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.just(7), st.integers(0, 9)), min_size=1, max_size=6))
def test_unpadded_graph_batches_equal_lengths(unmasked: OnnxModel, shapes: list[tuple[int, int, int]]) -> None:
    assert_as_alone(unmasked, [tokens(*shape) for shape in shapes])


def test_masked_graph_is_padded(encoder: OnnxModel) -> None:
    spec = encoder.spec
    assert spec.sequence is not None
    assert spec.sequence.unpadded_because is None
    assert spec.sequence.output_axes == {"last_hidden_state": (1,)}
    assert spec.batched_inputs == {"input_ids", "attention_mask"}
    assert spec.sole_input is not None, "the mask may be left out, so input_data is enough"
    assert spec.sole_input.name == "input_ids"


def test_omitted_mask_is_created(encoder: OnnxModel) -> None:
    ones, without = (encoder.infer(tokens(2, 5, mask=mask)) for mask in ("ones", "left out"))
    for name in ones:
        check_alike(np.asarray(ones[name]), np.asarray(without[name]), tolerance=1e-5)


def test_graph_without_mask_has_reason_against_padding(unmasked: OnnxModel) -> None:
    assert because(unmasked) == (
        'output "last_hidden_state" of a padded row differs from its single run; '
        "if the graph reads a mask, name it as mask_input"
    )
    spec = unmasked.spec
    assert spec.unbatched_because is None
    lengths = [signature_of(tokens(1, length), spec.batched_inputs, spec.sequence) for length in (5, 6)]
    assert [signature.length for signature in lengths] == [5, 6]
    assert lengths[0].shape != lengths[1].shape


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64"])
def test_every_sequence_axis_of_output_is_cut(tmp_path: Path, dtype: str) -> None:
    model = load(onnx_graphs.doubled_tokens(dtype), tmp_path, sequence_axis=1)
    assert because(model) is None
    assert model.spec.sequence is not None
    assert model.spec.sequence.output_axes == {"y": (1,), "z": (1, 2)}
    requests = [TensorBatch({"x": np.ones((1, length, 2), NUMPY_DTYPES[dtype])}) for length in (3, 1, 8)]
    assert_as_alone(model, requests)


def test_bfloat16_input_is_padded(tmp_path: Path) -> None:
    model = load(onnx_graphs.identity("bfloat16", ("n", "length")), tmp_path, sequence_axis=1, pad_values={"x": 2})
    assert because(model) is None
    requests = [
        TensorBatch({"x": np.full((1, n), n / 3).astype(ml_dtypes.bfloat16).astype(np.float32)}) for n in (1, 5)
    ]
    assert_as_alone(model, requests, relative=0)


@pytest.mark.parametrize(
    ("operator", "dtype", "pad_value", "harmless"),
    [
        ("ReduceSum", "float32", 0, True),
        ("ReduceSum", "float32", 1, False),
        ("ReduceProd", "float32", 1, True),
        ("ReduceMean", "float32", 0, False),
        ("ReduceMax", "float32", 0, False),
        ("ReduceMax", "float32", -1e30, True),
        ("ReduceMax", "int64", 0, False),
        ("ReduceMax", "int64", -(2**62), True),
        ("ReduceMin", "float32", 0, False),
        ("ReduceMin", "float32", 5, False),
        ("ReduceMin", "float32", 1e30, True),
        ("ReduceLogSumExp", "float32", 0, False),
        ("ReduceLogSumExp", "float32", -1e30, True),
    ],
)
def test_neutral_pad_value_allows_padding(
    tmp_path: Path, operator: str, dtype: str, pad_value: float, harmless: bool
) -> None:
    model = load(onnx_graphs.over_length(operator, dtype), tmp_path, sequence_axis=1, pad_values={"x": pad_value})
    assert (because(model) is None) is harmless
    if harmless:
        rows: list[Array] = [np.array([[-3, -2, -4]]), np.array([[7, 9, 8, 7, 9]])]
        assert_as_alone(model, [TensorBatch({"x": row.astype(dtype)}) for row in rows])


def test_output_of_other_length_is_not_padded(tmp_path: Path) -> None:
    reason = because(load(onnx_graphs.every_other(), tmp_path, sequence_axis=1))
    assert reason is not None
    assert 'output "y" of a padded row differs' in reason


def test_unbatched_graph_is_not_padded(tmp_path: Path) -> None:
    assert because(load(onnx_graphs.add((1, "length")), tmp_path, sequence_axis=1)) == "batching is off"
    with capture_logs() as logs:
        load(onnx_graphs.every_other(), tmp_path, sequence_axis=1)
    assert [line["event"] for line in logs] == ["rows of different lengths are not batched together"]


def test_graph_without_warm_up_is_not_padded(tmp_path: Path) -> None:
    # 9 is not a multiple of 2.
    node = onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])
    graph = onnx_graphs.model_of(
        [node],
        [("x", "float32", ("n", "length"))],
        [("y", "float32", ("n", 2, "half"))],
        {"shape": np.array([0, 2, -1])},
    )
    assert because(load(graph, tmp_path, sequence_axis=1)) == "it was not warmed up"
    wanted = load(graph, tmp_path, sequence_axis=1, input_shape=[1, 4])
    assert wanted.spec.unbatched_because is None
    assert because(wanted) is not None


def test_input_shape_sets_length_of_trials(tmp_path: Path) -> None:
    for length, expected in ((1, {1, 2}), (2, {1, 2}), (6, {3, 6})):
        seen: set[int] = set()

        def run(inputs: dict[str, Value], seen: set[int] = seen) -> dict[str, Value]:
            x = inputs["x"]
            assert isinstance(x, np.ndarray)
            seen.add(x.shape[1])
            return {"y": x}

        kind = TensorType("float32", (-1, -1))
        spec = ModelSpec("onnx", "tensor", (ValueSpec("x", kind),), (ValueSpec("y", kind),), "cpu", "float32", 0)
        object.__setattr__(spec, "sequence", SequenceSpec(1, {"x": 0}))
        found = try_padding(spec, {"x": (1, length)}, run)
        assert found is not None
        assert (found.unpadded_because, found.output_axes, seen) == (None, {"y": (1,)}, expected)


@pytest.mark.parametrize(
    ("graph", "entry", "message"),
    [
        (
            onnx_graphs.identity(),
            {},
            'sequence_axis: expected a free dimension of a required input, got 1; the inputs are "x" [-1]',
        ),
        (
            onnx_graphs.identity(shape=None),
            {},
            'free dimension of a required input, got 1; the inputs are "x" undeclared',
        ),
        (onnx_graphs.identity(shape=("n", 4)), {}, "expected a free dimension of a required input, got 1"),
        (onnx_graphs.map_in(), {}, "expected a free dimension of a required input, got 1"),
        (onnx_graphs.identity("string", ("n", "l")), {}, 'sequence_axis: expected numbers to pad, got strings in "x"'),
        (
            ENCODER,
            {"pad_values": {"input_id": 1}},
            'pad_values: expected an input of the graph, got "input_id".*; did you mean "input_ids"?',
        ),
        (ENCODER, {"pad_values": {"zz": 1}}, "its inputs are input_ids, attention_mask"),
        (
            ENCODER,
            {"mask_input": "atention_mask"},
            'mask_input: expected an input of the graph, got .*; did you mean "attention_mask"?',
        ),
        (ENCODER, {**MASKED, "pad_values": {"attention_mask": 1}}, "pad_values: expected 0 for the mask_input"),
        (ENCODER, {"pad_values": {"input_ids": 0.5}}, 'pad_values: expected int64 numbers for "input_ids", got 0.5'),
        (ENCODER, {"pad_values": {"input_ids": 2**63}}, "expected int64 numbers"),
        (onnx_graphs.doubled_tokens("float16"), {"pad_values": {"x": 1e5}}, "expected float16 numbers"),
        (onnx_graphs.identity("bool", ("n", "l")), {"pad_values": {"x": 2}}, "expected bool numbers"),
        (onnx_graphs.doubled_tokens(), {"mask_input": "x"}, "expected a free dimension of a required input, got 1"),
        (
            onnx_graphs.over_length(others=["wide"]),
            {"pad_values": {"wide": 3}, "sequence_axis": 2},
            "sequence_axis: expected a free dimension of a required input, got 2",
        ),
        (onnx_graphs.concat(), {"pad_values": {"c": 1}}, "expected a free dimension of a required input, got 1"),
    ],
)
def test_entry_against_graph_is_refused(
    tmp_path: Path, graph: onnx.ModelProto, entry: dict[str, Any], message: str
) -> None:
    onnx_graphs.save(graph, tmp_path)
    with pytest.raises(InvalidModel) as refusal:
        load_onnx(tmp_path, **{"sequence_axis": 1, **entry})
    for words in message.split(".*"):
        assert words in refusal.value.message


def test_mask_of_other_shape_is_refused(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    for shape in (("n", "length", "more"), ("n", 4), ("n",)):
        inputs: list[onnx_graphs.Declared] = [("x", "float32", ("n", "length")), ("m", "float32", shape)]
        graph = onnx_graphs.model_of([node], inputs, [("y", "float32", ("n", "length"))])
        onnx_graphs.save(graph, tmp_path)
        with pytest.raises(
            InvalidModel, match=r'mask_input: .* only free dimensions are its rows and dimension 1, got "m" of shape'
        ):
            load_onnx(tmp_path, sequence_axis=1, mask_input="m")


@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", "int8"])
def test_mask_of_any_dtype_is_created(tmp_path: Path, dtype: str) -> None:
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"]), onnx.helper.make_node("Identity", ["m"], ["same"])]
    inputs: list[onnx_graphs.Declared] = [("x", "float32", ("n", "length")), ("m", dtype, ("n", "length", 1))]
    outputs: list[onnx_graphs.Declared] = [("y", "float32", ("n", "length")), ("same", dtype, ("n", "length", 1))]
    model = load(onnx_graphs.model_of(nodes, inputs, outputs), tmp_path, sequence_axis=1, mask_input="m")
    assert because(model) is None
    x: dict[str, Value] = {"x": np.ones((2, 3), np.float32)}
    same = np.asarray(model.infer(TensorBatch(x))["same"])
    assert (same.dtype, same.shape) == (NUMPY_DTYPES[dtype], (2, 3, 1))
    assert same.all()
    requests = [TensorBatch({"x": np.ones((1, length), np.float32)}) for length in (2, 5)]
    assert_as_alone(model, requests)


def test_tensors_of_text_model_have_sequence_axis(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    model = load_onnx(onnx_graphs.save(ENCODER, tmp_path).parent, **MASKED)
    assert isinstance(model, OnnxTextModel)
    model.warm_up()
    assert model.spec.sequence is not None
    assert model.spec.sequence.unpadded_because is None
    assert model.spec.batched_inputs == {"input_ids", "attention_mask"}


def test_length_refused_by_graph_is_invalid_input(encoder: OnnxModel) -> None:
    with pytest.raises(InvalidInput):
        encoder.infer(TensorBatch({"input_ids": np.full((1, 3), 999)}))
