"""Graphs of tensors: every dtype passes unchanged, and results equal those of ONNX Runtime."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from structlog.testing import capture_logs

from frameworks.errors import InvalidInput, InvalidModel, ModelFailed
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.session import bfloat16_bits
from frameworks.types import (
    NUMPY_DTYPES,
    Array,
    MapType,
    OptionalType,
    SequenceType,
    TensorBatch,
    TensorType,
    TokenBatch,
    Value,
    ValueSpec,
)
from tests.frameworks.models.loading import listed, load_onnx
from tests.support.models import onnx_encoders, onnx_graphs

INTEGERS = [dtype for dtype in onnx_graphs.ONNX_DTYPES if "int" in dtype]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    """Load and warm up a graph."""

    def load(graph: onnx.ModelProto, **entry: Any) -> OnnxModel:
        model = load_onnx(onnx_graphs.save(graph, tmp_path), **entry)
        assert isinstance(model, OnnxModel)
        model.warm_up()
        return model

    return load


def ask(model: OnnxModel, *output_names: str, **inputs: Value) -> dict[str, Value]:
    return model.infer(TensorBatch(inputs, output_names or None))


def extremes(dtype: str) -> Array:
    """Return eight values at the limits of the dtype."""
    if dtype == "bool":
        return np.array([True, False] * 4)
    if dtype == "string":
        return np.array(["", "a", "日本", "line\nbreak", "tab\t", "ünï", "🚂", "x" * 1000], object)
    if dtype in INTEGERS:
        ends = np.iinfo(dtype)
        return np.array([ends.min, ends.max, 0, 1, ends.max - 1, ends.min + 1, 2, 3], dtype)
    numbers = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.0, 0.0], np.float64)
    # The smallest number above 0; of bfloat16 as the float32 that carries it.
    numbers[7] = 2.0**-126 if dtype == "bfloat16" else np.finfo(dtype).tiny
    return numbers.astype(NUMPY_DTYPES[dtype])


def same(given: Array, got: Value) -> None:
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (given.dtype, given.shape)
    if given.dtype == object:
        assert got.tolist() == given.tolist()
    else:
        assert got.tobytes() == given.tobytes()


class TestEveryDtype:
    @pytest.mark.parametrize("dtype", list(onnx_graphs.ONNX_DTYPES))
    def test_extremes_are_returned_bit_for_bit(self, loaded: Any, dtype: str) -> None:
        model = loaded(onnx_graphs.identity(dtype, ("n", None)))
        x = extremes(dtype).reshape(2, 4)
        same(x, ask(model, x=x)["y"])
        assert model.spec.inputs == (ValueSpec("x", TensorType(dtype, (-1, -1))),)

    @pytest.mark.parametrize("dtype", list(onnx_graphs.ONNX_DTYPES))
    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0), (1, 1, 2, 1)])
    def test_scalars_empty_tensors_and_many_ranks(self, loaded: Any, dtype: str, shape: tuple[int, ...]) -> None:
        model = loaded(onnx_graphs.identity(dtype, tuple(None for _ in shape)))
        x = np.resize(extremes(dtype)[3:], shape) if 0 not in shape else np.empty(shape, extremes(dtype).dtype)
        same(x, ask(model, x=x)["y"])

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "string", "int64"])
    def test_undeclared_rank_accepts_any_shape(self, loaded: Any, dtype: str) -> None:
        model = loaded(onnx_graphs.identity(dtype, None))
        assert model.spec.inputs[0].shape is None
        for shape in ((), (2,), (1, 2, 1)):
            x = np.resize(extremes(dtype)[4:6], shape)
            same(x, ask(model, x=x)["y"])

    def test_int64_beyond_float_precision_is_exact(self, loaded: Any) -> None:
        x = np.array([2**53 + 1, -(2**53) - 1, 2**63 - 1], np.int64)
        assert listed(ask(loaded(onnx_graphs.identity("int64")), x=x)["y"]) == x.tolist()

    def test_largest_uint64_is_exact(self, loaded: Any) -> None:
        x = np.array([2**64 - 1], np.uint64)
        assert listed(ask(loaded(onnx_graphs.identity("uint64")), x=x)["y"]) == [2**64 - 1]

    def test_view_of_array_is_read(self, loaded: Any) -> None:
        for dtype in ("float32", "bfloat16"):
            x = np.arange(24, dtype=np.float32).reshape(4, 6).T[::2, 1:]
            same(np.ascontiguousarray(x), ask(loaded(onnx_graphs.identity(dtype, (None, None))), x=x)["y"])


class TestBfloat16:
    @given(np_st.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
    def test_rounding_is_to_nearest_even(self, numbers: Array) -> None:
        reference = numbers.astype(ml_dtypes.bfloat16)
        ours = bfloat16_bits(numbers).view(ml_dtypes.bfloat16)
        assert ours.dtype == reference.dtype
        is_nan = np.isnan(numbers)
        assert ours[~is_nan].tobytes() == reference[~is_nan].tobytes()
        assert np.isnan(ours[is_nan].astype(np.float32)).all()

    def test_every_bit_pattern_of_nan_stays_nan(self) -> None:
        payloads = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
        ours = bfloat16_bits(payloads.view(np.float32)).view(ml_dtypes.bfloat16).astype(np.float32)
        assert np.isnan(ours).all()

    def test_ties_round_to_even(self) -> None:
        # Halfway between two bfloat16 numbers, the one with the even last bit is chosen.
        numbers = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
        assert [hex(bits) for bits in bfloat16_bits(numbers)] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80"]

    def test_scalar_stays_scalar(self) -> None:
        assert bfloat16_bits(np.ones((), np.float32)).shape == ()

    def test_numbers_are_rounded_at_input(self, loaded: Any) -> None:
        x = np.array([1.001, 3.14159, 65504.0, 1e-40], np.float32)
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        same(expected, ask(loaded(onnx_graphs.identity("bfloat16")), x=x)["y"])


class TestSameAsRaw:
    """Results equal those of ONNX Runtime, to the bit."""

    def check(self, loaded: Any, graph: onnx.ModelProto, **inputs: Value) -> dict[str, Value]:
        raw = onnx_graphs.session(graph)
        names = [output.name for output in raw.get_outputs()]
        expected = dict(zip(names, raw.run(names, inputs), strict=True))
        ours = ask(loaded(graph), **inputs)
        assert list(ours) == names
        for name in names:
            if isinstance(expected[name], np.ndarray):
                same(expected[name], ours[name])
            else:
                assert repr(ours[name]) == repr(expected[name])
        return ours

    def test_several_inputs_and_outputs_agree(self, loaded: Any) -> None:
        random = np.random.default_rng(1)
        a, b = (random.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
        self.check(loaded, onnx_graphs.add(), a=a, b=b)

    def test_several_dtypes_agree(self, loaded: Any) -> None:
        inputs: dict[str, Value] = {
            "a": np.array(["x", "y"], object),
            "b": np.array(["ä"], object),
            "c": np.arange(4, dtype=np.int32).reshape(2, 2),
        }
        ours = self.check(loaded, onnx_graphs.concat(), **inputs)
        assert listed(ours["joined"]) == ["x", "y", "ä"]

    def test_image_agrees(self, loaded: Any) -> None:
        image = np.random.default_rng(2).random((2, 3, 224, 224), np.float32)
        ours = self.check(loaded, onnx_graphs.image_mean(), image=image)
        np.testing.assert_allclose(ours["mean"], image.mean(axis=(1, 2, 3))[:, None], rtol=1e-5)  # type: ignore[arg-type]

    def test_encoder_agrees(self, loaded: Any) -> None:
        ids = np.array([[2, 7, 9, 3], [2, 5, 3, 0]], np.int64)
        names = ("last_hidden_state", "pooler_output", "sentence_embedding")
        self.check(loaded, onnx_encoders.encoder(names), input_ids=ids, attention_mask=(ids > 0).astype(np.int64))

    def test_output_sequence_agrees(self, loaded: Any) -> None:
        ours = self.check(loaded, onnx_graphs.sequence_out(), x=np.arange(6, dtype=np.float32).reshape(3, 2))
        assert [part.tolist() for part in ours["rows"]] == [[[0, 1]], [[2, 3]], [[4, 5]]]  # type: ignore[union-attr]

    @pytest.mark.parametrize("dtype", ["float32", "int64", "string"])
    def test_input_sequence_agrees(self, loaded: Any, dtype: str) -> None:
        parts: list[Any] = [extremes(dtype)[2 * i : 2 * i + 2].reshape(1, 2) for i in range(3)]
        ours = self.check(loaded, onnx_graphs.sequence_in(dtype), parts=parts)
        assert isinstance(ours["same"], list)
        assert len(ours["same"]) == 3

    @pytest.mark.parametrize("labels", [("cat", "dög", ""), (7, -1, 2**40)])
    def test_output_maps_agree(self, loaded: Any, labels: Any) -> None:
        scores = np.array([[0.1, 0.2, 0.7], [np.nan, np.inf, 0]], np.float32)
        ours = self.check(loaded, onnx_graphs.zip_map(labels), scores=scores)
        assert isinstance(ours["maps"], list)
        assert [list(row) for row in ours["maps"]] == [sorted(labels)] * 2
        assert ours["maps"][0][labels[0]] == np.float32(0.1)

    def test_input_map_agrees(self, loaded: Any) -> None:
        ours = self.check(loaded, onnx_graphs.map_in(), counts={"c": 3.0, "a": 1.0})
        assert listed(ours["vector"]) == [[1, 0, 3]]

    @pytest.mark.parametrize("full", [True, False])
    def test_output_optional_agrees(self, loaded: Any, full: bool) -> None:
        ours = self.check(loaded, onnx_graphs.optional_out(), x=np.ones(2, np.float32), full=np.array(full))
        assert (ours["perhaps"] is not None) == full

    @pytest.mark.parametrize("value", [None, np.array([4, 5], np.float32)])
    def test_input_optional_agrees(self, loaded: Any, value: Value) -> None:
        ours = self.check(loaded, onnx_graphs.optional_in(), perhaps=value)
        assert bool(ours["given"]) == (value is not None)


class TestSpecs:
    def test_spec_has_inputs_and_outputs(self, loaded: Any) -> None:
        spec = loaded(onnx_graphs.concat()).spec
        assert (spec.framework, spec.task, spec.device, spec.providers) == (
            "onnx", "tensor", "cpu", ("CPUExecutionProvider",),
        )  # fmt: skip
        assert spec.inputs == (
            ValueSpec("a", TensorType("string", (-1,))),
            ValueSpec("b", TensorType("string", (-1,))),
            ValueSpec("c", TensorType("int32", (-1, 2))),
        )
        assert spec.outputs_by_name["doubled"] == ValueSpec("doubled", TensorType("int32", (-1, 4)))

    def test_input_with_default_is_not_required(self, loaded: Any) -> None:
        model = loaded(onnx_graphs.scaled(2.0))
        assert [(spec.name, spec.required) for spec in model.spec.inputs] == [("x", True), ("factor", False)]
        x = np.array([1, 2], np.float32)
        assert listed(ask(model, x=x)["y"]) == [2, 4]
        assert listed(ask(model, x=x, factor=np.array([10], np.float32))["y"]) == [10, 20]

    def test_optional_input_is_not_required(self, loaded: Any) -> None:
        [perhaps] = loaded(onnx_graphs.optional_in()).spec.inputs
        assert perhaps == ValueSpec("perhaps", OptionalType(TensorType("float32", (-1,))), required=False)
        assert perhaps.shape == (-1,)

    def test_spec_has_sequences_and_maps(self, loaded: Any) -> None:
        [maps] = loaded(onnx_graphs.zip_map()).spec.outputs
        assert maps.type == SequenceType(MapType("string", TensorType("float32", None)))
        [counts] = loaded(onnx_graphs.map_in()).spec.inputs
        assert str(counts.type) == "map(string, float32)"

    @pytest.mark.parametrize(
        ("graph", "dtype"),
        [
            (onnx_graphs.identity("int32"), "int32"),
            (onnx_graphs.gather(), "float32"),
            (onnx_graphs.identity("float16"), "float16"),
            (onnx_graphs.identity("bfloat16"), "bfloat16"),
            (onnx_graphs.map_in(), "float32"),
        ],
        ids=lambda x: x if isinstance(x, str) else "",
    )
    def test_spec_shows_dtype_of_weights(self, loaded: Any, graph: onnx.ModelProto, dtype: str) -> None:
        assert loaded(graph).spec.dtype == dtype

    def test_only_requested_outputs_are_returned(self, loaded: Any) -> None:
        x = np.ones((1, 4), np.float32)
        assert list(ask(loaded(onnx_graphs.add()), "product", a=x, b=x)) == ["product"]

    def test_outputs_keep_requested_order(self, loaded: Any) -> None:
        x = np.full((1, 4), 3, np.float32)
        answer = ask(loaded(onnx_graphs.add()), "product", "sum", a=x, b=x)
        assert {name: value.ravel()[0] for name, value in answer.items()} == {"product": 9, "sum": 6}  # type: ignore[union-attr]


class TestRefusals:
    def test_error_of_run_is_invalid_input(self, loaded: Any) -> None:
        model = loaded(onnx_graphs.gather())
        with pytest.raises(InvalidInput, match=r"the graph refuses these values: .*out of data bounds") as caught:
            ask(model, indices=np.array([3], np.int64))
        assert caught.value.field == "inputs"
        assert "\n" not in caught.value.message
        assert "ONNXRuntimeError" not in caught.value.message
        assert listed(ask(model, indices=np.array([-1], np.int64))["values"]) == [12]

    @pytest.mark.parametrize(
        "inputs",
        [
            {},
            {"a": np.ones((1, 4), np.float32)},
            {"a": np.ones((1, 4), np.float32), "b": np.ones((1, 5), np.float32)},
            {"a": np.ones((1, 4), np.float32), "b": np.ones(4, np.float32)},
            {"a": np.ones((1, 4), np.float64), "b": np.ones((1, 4), np.float32)},
            {"a": np.ones((2, 4), np.float32), "b": np.ones((3, 4), np.float32)},
            {"a": np.ones((1, 4), np.float32), "b": np.ones((1, 4), np.float32), "c": np.ones(1, np.float32)},
            {"a": [], "b": np.ones((1, 4), np.float32)},
            {"a": {}, "b": None},
        ],
    )
    def test_unsuitable_value_is_refused(self, loaded: Any, inputs: dict[str, Value]) -> None:
        with pytest.raises(InvalidInput):
            ask(loaded(onnx_graphs.add()), **inputs)

    @pytest.mark.parametrize(
        "inputs",
        [{}, {"z": np.ones(1, np.float32)}, {"x": []}, {"x": {}}, {"x": None}, {"x": np.ones((1, 1), np.int8)}],
    )
    def test_unsuitable_bfloat16_value_is_refused(self, loaded: Any, inputs: dict[str, Value]) -> None:
        with pytest.raises(InvalidInput):
            ask(loaded(onnx_graphs.identity("bfloat16", ("n",))), **inputs)

    def test_unknown_output_is_refused(self, loaded: Any) -> None:
        with pytest.raises(InvalidInput, match="what"):
            ask(loaded(onnx_graphs.identity()), "what", x=np.ones(1, np.float32))

    def test_text_for_tensor_model_is_refused(self, loaded: Any) -> None:
        with pytest.raises(InvalidInput, match="text: expected tensors for this model, got text"):
            loaded(onnx_graphs.identity()).infer(TokenBatch([[1]]))

    def test_invalid_input_is_not_logged(self, loaded: Any, capfd: Any) -> None:
        model = loaded(onnx_graphs.gather())
        with pytest.raises(InvalidInput):
            ask(model, indices=np.array([3], np.int64))
        assert capfd.readouterr() == ("", "")

    def test_closed_model_refuses_run(self, loaded: Any) -> None:
        model = loaded(onnx_graphs.identity())
        model.close()
        with pytest.raises(ModelFailed, match="closed"):
            ask(model, x=np.ones(1, np.float32))


class TestInputShape:
    @pytest.mark.parametrize("shape", [(1, 2, 3), (5, 9, 3)])
    def test_matching_shape_is_accepted(self, loaded: Any, shape: tuple[int, ...]) -> None:
        loaded(onnx_graphs.free("batch", None), input_shape=shape)

    @pytest.mark.parametrize("shape", [(1, 2, 4), (1, 3), (3,), (1, 2, 3, 1)])
    def test_other_shape_is_refused(self, loaded: Any, shape: tuple[int, ...]) -> None:
        with pytest.raises(
            InvalidModel, match=r'input_shape: expected \[-1, -1, 3\] for "x" \(-1 is free\), got \[.*; make'
        ):
            loaded(onnx_graphs.free("batch", None), input_shape=shape)

    @pytest.mark.parametrize("graph", [onnx_graphs.identity("float32", ()), onnx_graphs.sequence_in()])
    def test_shape_for_graph_without_shape_is_refused(self, loaded: Any, graph: onnx.ModelProto) -> None:
        with pytest.raises(InvalidModel, match="input_shape: expected none for a first input without declared shape"):
            loaded(graph, input_shape=(1,))

    def test_shared_free_dimension_is_set_everywhere(self, loaded: Any) -> None:
        with capture_logs() as logs:
            loaded(onnx_graphs.concat(), input_shape=(5,))  # "n" is a's and c's
        assert logs == []


class TestWarmUp:
    def test_declared_shape_that_fails_is_refused(self, loaded: Any) -> None:
        with pytest.raises(InvalidModel, match=r"does not run with its declared shape: .*out of data bounds"):
            loaded(onnx_graphs.misdeclared())

    def test_input_shape_that_fails_is_refused(self, loaded: Any) -> None:
        with pytest.raises(InvalidModel, match="does not run with its declared shape"):
            loaded(onnx_graphs.pairs(), input_shape=(3,))
        loaded(onnx_graphs.pairs(), input_shape=(4,))

    def test_guessed_shape_that_fails_only_warns(self, loaded: Any) -> None:
        with capture_logs() as logs:
            model = loaded(onnx_graphs.pairs())
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [
            ("not warmed up: set input_shape", "warning")
        ]
        assert listed(ask(model, x=np.arange(4, dtype=np.float32))["y"]) == [[0, 1], [2, 3]]

    def test_guessed_shape_beside_input_shape_only_warns(self, loaded: Any) -> None:
        with capture_logs() as logs:
            loaded(onnx_graphs.two_lengths(), input_shape=(3,))
        assert [entry["event"] for entry in logs] == ["not warmed up: set input_shape"]

    def test_free_optional_input_does_not_excuse_failure(self, loaded: Any) -> None:
        with pytest.raises(InvalidModel, match="does not run with its declared shape"):
            loaded(onnx_graphs.misdeclared(with_default=True))

    @pytest.mark.parametrize(
        "graph",
        [
            onnx_graphs.zip_map(), onnx_graphs.map_in(), onnx_graphs.optional_in(), onnx_graphs.optional_out(),
            onnx_graphs.sequence_out(), onnx_graphs.scaled(), onnx_graphs.image_mean(1), onnx_graphs.add((2, 2)),
            onnx_graphs.identity("string", ("n", 2)), onnx_graphs.identity("bfloat16", ()), onnx_graphs.slow(1),
        ],
    )  # fmt: skip
    def test_every_kind_of_input_warms_up(self, loaded: Any, graph: onnx.ModelProto) -> None:
        with capture_logs() as logs:
            loaded(graph)
        assert logs == []
