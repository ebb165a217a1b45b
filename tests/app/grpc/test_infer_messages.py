"""Test tensors between messages and numpy: raw and typed contents agree, and invalid contents are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from app.grpc.infer_messages import (
    _described,
    is_typed,
    parse_request,
    read_parameters,
    serialize_response,
    serialize_stream_response,
)
from app.grpc.messages import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from app.grpc.received import ReceivedInfer, read_infer
from app.protocols.open_inference.datatypes import DATATYPES, encode_tensor
from app.protocols.open_inference.infer_types import OutputTensor, ParsedRequest, RequestedOutput
from frameworks.core.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES
from tests.app.protocols.native.specs import model

SPEC = model()
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, np.ndarray[Any, Any]]:
    """Draw a datatype and a tensor of it."""
    dtype = draw(st.sampled_from(sorted(set(DATATYPES) - {"bfloat16"})))
    shape = draw(SHAPES)
    if dtype != "string":
        return DATATYPES[dtype], draw(st_numpy.arrays(NUMPY_DTYPES[dtype], shape))
    array = np.empty(shape, dtype=object)
    flat = array.reshape(-1)
    flat[:] = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=flat.size, max_size=flat.size))
    return "BYTES", flat.reshape(shape)


@given(tensors(), st.booleans())
def test_raw_and_typed_contents_give_same_tensor(tensor: tuple[str, np.ndarray[Any, Any]], large: bool) -> None:
    datatype, array = tensor
    raw = infer_request(datatype, array.shape)
    raw.raw_input_contents.append(bytes(encode_tensor(array, datatype)))
    (read,) = parse(raw, large).inputs
    assert (read.name, read.datatype) == ("x", datatype)
    np.testing.assert_array_equal(read.value, array, strict=True)
    if datatype in TYPED:
        typed = infer_request(datatype, array.shape)
        elements = [e.encode() for e in array.reshape(-1)] if datatype == "BYTES" else array.reshape(-1).tolist()
        getattr(typed.inputs[0].contents, TYPED[datatype]).extend(elements)
        np.testing.assert_array_equal(parse(typed, large).inputs[0].value, array, strict=True)


@given(tensors(), st.booleans())
def test_response_contents_are_typed_as_request(tensor: tuple[str, np.ndarray[Any, Any]], large: bool) -> None:
    datatype, array = tensor
    typed, raw = infer_request(datatype, array.shape), infer_request(datatype, array.shape)
    raw.raw_input_contents.append(b"")
    for request in (typed, raw):
        request.id = "seven"
        typed_request = is_typed(received(request, large))
        outputs = [OutputTensor("y", datatype, array)]
        large_elements = 0 if large else 2**30
        serialized = serialize_response(request.id, typed_request, outputs, "m", "3", {"final": True}, large_elements)
        streamed = ModelStreamInferResponse.FromString(serialize_stream_response(serialized))
        response = ModelInferResponse.FromString(serialized)
        assert streamed.infer_response == response or array.dtype.kind == "f"
        assert (response.model_name, response.model_version, response.id) == ("m", "3", "seven")
        assert response.parameters["final"].bool_param is True
        (output,) = response.outputs
        assert (output.name, output.datatype, tuple(output.shape)) == ("y", datatype, array.shape)
        if request is typed and datatype in TYPED:
            assert not response.raw_output_contents
            assert len(getattr(output.contents, TYPED[datatype])) == array.size
        else:
            assert list(response.raw_output_contents) == [bytes(encode_tensor(array, datatype))]


def test_response_with_one_raw_output_is_all_raw() -> None:
    outputs = [
        OutputTensor("a", "FP32", np.zeros(1, np.float32)),
        OutputTensor("b", "FP16", np.zeros(1, np.float16)),
    ]
    for large_elements in (0, 2**30):
        serialized = serialize_response("", True, outputs, "m", "1", {}, large_elements)
        response = ModelInferResponse.FromString(serialized)
        assert list(map(len, response.raw_output_contents)) == [4, 2]
        assert [each.name for each in response.outputs] == ["a", "b"]


@pytest.mark.parametrize("datatype", ["INT32", "FP64", "BYTES"])
def test_long_typed_response_equals_short_one(datatype: str) -> None:
    values: Any = np.arange(20_000).astype({"INT32": np.int32, "FP64": np.float64, "BYTES": np.str_}[datatype])
    outputs = [OutputTensor("y", datatype, values.astype(object) if datatype == "BYTES" else values)]
    long, short = (serialize_response("7", True, outputs, "m", "1", {}, limit) for limit in (0, 2**30))
    assert ModelInferResponse.FromString(long) == ModelInferResponse.FromString(short)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("datatype", "shape", "field", "elements", "message"),
    [
        ("FP32", [2], "fp32_contents", [1.0], r"inputs\[0\]\.contents\.fp32_contents: expected 2 elements .* got 1"),
        ("FP32", [1], "fp64_contents", [1.0], r"got 0; send FP32 in fp32_contents, not in fp64_contents"),
        ("INT8", [1], "int_contents", [128], r"inputs\[0\]\.contents: expected int8, from -128 to 127, got 128"),
        ("UINT16", [1], "uint_contents", [65536], r"expected uint16, from 0 to 65535, got 65536"),
        ("BYTES", [1], "bytes_contents", [b"\xff"], r"bytes_contents\[0\]: expected UTF-8"),
        (
            "FP16",
            [1],
            "fp32_contents",
            [1.0],
            r"inputs\[0\]\.datatype: expected a datatype with typed contents, got FP16; send raw",
        ),
        ("FLOAT", [1], "fp32_contents", [1.0], r"inputs\[0\]\.datatype: expected one of BOOL"),
        ("FP32", [-1], "fp32_contents", [1.0], r"inputs\[0\]\.shape: expected a list"),
        ("FP32", [2**40, 2**40], "fp32_contents", [1.0], r"expected fewer than 1099511627776 elements"),
        ("FP32", [1] * 33, "fp32_contents", [1.0], r"at most 32"),
    ],
)
def test_invalid_typed_contents_are_refused(
    datatype: str, shape: list[int], field: str, elements: list[Any], message: str, large: bool
) -> None:
    request = infer_request(datatype, tuple(shape))
    getattr(request.inputs[0].contents, field).extend(elements)
    with pytest.raises(InvalidInput, match=message):
        parse(request, large)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([b"1234", b"5678"], "raw_input_contents: expected one entry per input in their order, 1 in all, got 2"),
        ([b"123"], r"inputs\[0\]: expected 4 bytes.* got 3"),
        ([b"12345"], r"inputs\[0\]: expected 4 bytes.* got 5"),
        ([b""], r"inputs\[0\]: expected 4 bytes.* got 0"),
    ],
)
def test_invalid_raw_contents_are_refused(raw: list[bytes], message: str, large: bool) -> None:
    request = infer_request("FP32", (1,))
    request.raw_input_contents.extend(raw)
    with pytest.raises(InvalidInput, match=message):
        parse(request, large)


@pytest.mark.parametrize("large", [False, True])
def test_raw_and_typed_contents_together_are_refused(large: bool) -> None:
    request = infer_request("FP32", (1,))
    request.inputs[0].contents.fp32_contents.append(1.0)
    request.raw_input_contents.append(b"1234")
    with pytest.raises(InvalidInput, match=r"inputs\[0\]\.contents: expected none beside raw_input_contents"):
        parse(request, large)


@pytest.mark.parametrize("large", [False, True])
def test_empty_contents_beside_raw_ones_ignored(large: bool) -> None:
    request = infer_request("FP32", (1,))
    request.inputs[0].contents.SetInParent()
    request.raw_input_contents.append(np.float32(2).tobytes())
    (given,) = parse(request, large).inputs
    assert given.value.tolist() == [2]


@pytest.mark.parametrize("large", [False, True])
def test_parameters_become_python_values_without_empty_ones(large: bool) -> None:
    request = infer_request("FP32", (0,))
    request.parameters["flag"].bool_param = False
    request.parameters["count"].int64_param = 0
    request.parameters["name"].string_param = ""
    request.parameters["number"].double_param = 0.5
    request.parameters["large"].uint64_param = 2**63
    request.parameters["empty"].SetInParent()
    expected = {"flag": False, "count": 0, "name": "", "number": 0.5, "large": 2**63}
    assert parse(request, large).parameters == expected
    assert read_parameters({}) == {}


@pytest.mark.parametrize("large", [False, True])
def test_requested_outputs_are_read_with_classification(large: bool) -> None:
    request = infer_request("FP32", (0,))
    assert parse(request, large).outputs is None
    request.outputs.add(name="a")
    request.outputs.add(name="b").parameters["classification"].int64_param = 3
    assert parse(request, large).outputs == [RequestedOutput("a"), RequestedOutput("b", 3)]
    request.outputs.add(name="c").parameters["classification"].string_param = "3"
    with pytest.raises(InvalidInput, match=r"outputs\.c\.classification"):
        parse(request, large)


def infer_request(datatype: str, shape: tuple[int, ...]) -> Any:
    message = ModelInferRequest()
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message


def received(request: Any, large: bool) -> ReceivedInfer:
    """Read a message. `large`: as those whose contents stay bytes."""
    return read_infer(request.SerializeToString(), 0 if large else 2**30)


def parse(request: Any, large: bool) -> ParsedRequest:
    return parse_request(received(request, large), SPEC)


def test_heads_of_long_ids_are_not_kept() -> None:
    outputs = [OutputTensor("y", "FP32", np.zeros((1, 2), np.float32))]
    for size, kept in ((128, 1), (129, 0)):
        _described.cache_clear()
        serialized = serialize_response("i" * size, False, outputs, "m", "3", {"final": True})
        assert ModelInferResponse.FromString(serialized).id == "i" * size
        assert _described.cache_info().currsize == kept
