"""Graphs of tensors: every dtype passes unchanged, and results equal those of ONNX Runtime."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from frameworks.core.errors import InvalidInput, ModelFailed
from frameworks.onnx.model import OnnxModel
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
from tests.frameworks.models.loading import listed
from tests.support.models import onnx_encoders, onnx_graphs

INTEGERS = [dtype for dtype in onnx_graphs.ONNX_DTYPES if "int" in dtype]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


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

    def test_numbers_are_rounded_to_bfloat16(self, loaded: Any) -> None:
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
