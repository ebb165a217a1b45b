"""ONNX Runtime's names of types."""

from dataclasses import dataclass, field

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.onnx.value_types import read_type
from frameworks.types import MapType, OptionalType, SequenceType, TensorType, ValueType
from tests.support.models import onnx_graphs


@dataclass
class Argument:
    """An input or output as onnxruntime describes it."""

    type: str
    shape: list[int | str | None] = field(default_factory=list)
    name: str = "x"


FLOATS = TensorType("float32", None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("tensor(float)", FLOATS),
        ("tensor(double)", TensorType("float64", None)),
        ("tensor(bfloat16)", TensorType("bfloat16", None)),
        ("tensor(string)", TensorType("string", None)),
        ("seq(tensor(float))", SequenceType(FLOATS)),
        ("seq(map(int64,tensor(float)))", SequenceType(MapType("int64", FLOATS))),
        ("map(string,tensor(double))", MapType("string", TensorType("float64", None))),
        ("map(string, tensor(int64))", MapType("string", TensorType("int64", None))),
        ("seq(seq(tensor(bool)))", SequenceType(SequenceType(TensorType("bool", None)))),
        ("optional(tensor(float))", OptionalType(FLOATS)),
        ("optional(seq(tensor(float)))", OptionalType(SequenceType(FLOATS))),
    ],
)
def test_types_are_read(text: str, kind: ValueType) -> None:
    assert read_type(Argument(text)) == kind


@pytest.mark.parametrize("dtype", list(onnx_graphs.ONNX_DTYPES))
def test_every_dtype_is_read_from_a_graph(dtype: str) -> None:
    [argument] = onnx_graphs.session(onnx_graphs.identity(dtype, ("n", 3))).get_inputs()
    assert read_type(argument) == TensorType(dtype, (-1, 3))


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        (["n", 3, None], (-1, 3, -1)),
        ([0, 2], (0, 2)),
        ([-1], (-1,)),
        ([], None),
    ],
)
def test_free_dimensions_are_minus_one(shape: list[int | str | None], read: tuple[int, ...] | None) -> None:
    assert read_type(Argument("tensor(int8)", shape)) == TensorType("int8", read)
    assert read_type(Argument("optional(tensor(int8))", shape)) == OptionalType(TensorType("int8", read))


@pytest.mark.parametrize(
    "text",
    [
        "tensor(float8e4m3fn)",
        "tensor(int4)",
        "tensor(complex64)",
        "sparse_tensor(float)",
        "seq(sparse_tensor(float))",
        "map(float,tensor(float4e2m1))",
        "opaque(com.example,Thing)",
        "tensor",
        "seq()",
        "",
    ],
)
def test_unsupported_type_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidModel, match=r'"weird": expected a tensor of bool, int8.*, got '):
        read_type(Argument(text, name="weird"))
