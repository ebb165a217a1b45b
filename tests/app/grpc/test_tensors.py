"""Tensors between messages and numpy: raw and typed say the same, and what lies is told."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from app.grpc.messages import ModelInferRequest, ModelInferResponse
from app.grpc.tensors import read_parameters, read_question, response_of
from app.protocols.open_inference.datatypes import DATATYPES, to_raw
from app.protocols.open_inference.infer_types import OutputTensor, RequestedOutput
from frameworks.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES

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
    """A datatype and a tensor of it."""
    dtype = draw(st.sampled_from(sorted(set(DATATYPES) - {"bfloat16"})))
    shape = draw(SHAPES)
    if dtype != "string":
        return DATATYPES[dtype], draw(st_numpy.arrays(NUMPY_DTYPES[dtype], shape))
    array = np.empty(shape, dtype=object)
    flat = array.reshape(-1)
    flat[:] = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=flat.size, max_size=flat.size))
    return "BYTES", flat.reshape(shape)


@given(tensors())
def test_raw_and_typed_contents_are_the_same_tensor(tensor: tuple[str, np.ndarray[Any, Any]]) -> None:
    datatype, array = tensor
    raw = request(datatype, array.shape)
    raw.raw_input_contents.append(bytes(to_raw(array, datatype)))
    (read,) = read_question(raw).inputs
    assert (read.name, read.datatype) == ("x", datatype)
    np.testing.assert_array_equal(read.value, array, strict=True)
    if datatype in TYPED:
        typed = request(datatype, array.shape)
        elements = [e.encode() for e in array.reshape(-1)] if datatype == "BYTES" else array.reshape(-1).tolist()
        getattr(typed.inputs[0].contents, TYPED[datatype]).extend(elements)
        np.testing.assert_array_equal(read_question(typed).inputs[0].value, array, strict=True)


@given(tensors())
def test_an_answer_has_the_form_of_its_question(tensor: tuple[str, np.ndarray[Any, Any]]) -> None:
    datatype, array = tensor
    typed, raw = request(datatype, array.shape), request(datatype, array.shape)
    raw.raw_input_contents.append(b"")
    for question in (typed, raw):
        question.id = "seven"
        response = response_of(question, [OutputTensor("y", datatype, array)], "m", "3", {"final": True})
        response = ModelInferResponse.FromString(response.SerializeToString())
        assert (response.model_name, response.model_version, response.id) == ("m", "3", "seven")
        assert response.parameters["final"].bool_param is True
        (output,) = response.outputs
        assert (output.name, output.datatype, tuple(output.shape)) == ("y", datatype, array.shape)
        if question is typed and datatype in TYPED:
            assert not response.raw_output_contents
            assert len(getattr(output.contents, TYPED[datatype])) == array.size
        else:
            assert list(response.raw_output_contents) == [bytes(to_raw(array, datatype))]


def test_one_output_that_travels_raw_makes_all_of_them_raw() -> None:
    outputs = [
        OutputTensor("a", "FP32", np.zeros(1, np.float32)),
        OutputTensor("b", "FP16", np.zeros(1, np.float16)),
    ]
    response = response_of(request("FP32", (1,)), outputs, "m", "1", {})
    assert list(map(len, response.raw_output_contents)) == [4, 2]


@pytest.mark.parametrize(
    ("datatype", "shape", "field", "elements", "told"),
    [
        ("FP32", [2], "fp32_contents", [1.0], r"inputs\[0\]\.contents\.fp32_contents: has 1 elements, .* holds 2"),
        ("FP32", [1], "fp64_contents", [1.0], r"has 0 elements.*fp64_contents has some, and FP32 wants fp32_contents"),
        ("INT8", [1], "int_contents", [128], r"inputs\[0\]\.contents: holds 128, outside -128 to 127"),
        ("UINT16", [1], "uint_contents", [65536], r"holds 65536, outside"),
        ("BYTES", [1], "bytes_contents", [b"\xff"], r"bytes_contents\[0\]: is no UTF-8"),
        ("FP16", [1], "fp32_contents", [1.0], r"inputs\[0\]\.datatype: FP16 travels in raw_input_contents only"),
        ("FLOAT", [1], "fp32_contents", [1.0], r'inputs\[0\]\.datatype: is "FLOAT"; wants one of BOOL'),
        ("FP32", [-1], "fp32_contents", [1.0], r"inputs\[0\]\.shape: wants a list"),
        ("FP32", [2**40, 2**40], "fp32_contents", [1.0], r"larger than any tensor"),
        ("FP32", [1] * 33, "fp32_contents", [1.0], r"at most 32"),
    ],
)
def test_what_lies_in_typed_contents_is_told(
    datatype: str, shape: list[int], field: str, elements: list[Any], told: str
) -> None:
    question = request(datatype, tuple(shape))
    getattr(question.inputs[0].contents, field).extend(elements)
    with pytest.raises(InvalidInput, match=told):
        read_question(question)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ([b"1234", b"5678"], "raw_input_contents: has 2 entries for 1 inputs"),
        ([b"123"], r"inputs\[0\]: has 3 bytes"),
        ([b"12345"], r"inputs\[0\]: has 5 bytes"),
        ([b""], r"inputs\[0\]: has 0 bytes"),
    ],
)
def test_what_lies_in_raw_contents_is_told(raw: list[bytes], told: str) -> None:
    question = request("FP32", (1,))
    question.raw_input_contents.extend(raw)
    with pytest.raises(InvalidInput, match=told):
        read_question(question)


def test_raw_and_typed_contents_do_not_go_together() -> None:
    question = request("FP32", (1,))
    question.inputs[0].contents.fp32_contents.append(1.0)
    question.raw_input_contents.append(b"1234")
    with pytest.raises(InvalidInput, match=r"inputs\[0\]\.contents: stands beside raw_input_contents"):
        read_question(question)


def test_parameters_are_python_s_own_values_and_empty_ones_are_left_out() -> None:
    question = request("FP32", (0,))
    question.parameters["flag"].bool_param = False
    question.parameters["count"].int64_param = 0
    question.parameters["name"].string_param = ""
    question.parameters["number"].double_param = 0.5
    question.parameters["large"].uint64_param = 2**63
    question.parameters["empty"].SetInParent()
    expected = {"flag": False, "count": 0, "name": "", "number": 0.5, "large": 2**63}
    assert read_question(question).parameters == expected
    assert read_parameters({}) == {}


def test_outputs_are_as_they_are_wanted() -> None:
    question = request("FP32", (0,))
    assert read_question(question).outputs is None
    question.outputs.add(name="a")
    question.outputs.add(name="b").parameters["classification"].int64_param = 3
    assert read_question(question).outputs == [RequestedOutput("a"), RequestedOutput("b", 3)]
    question.outputs.add(name="c").parameters["classification"].string_param = "3"
    with pytest.raises(InvalidInput, match=r"outputs\.c\.classification"):
        read_question(question)


def request(datatype: str, shape: tuple[int, ...]) -> Any:
    message = ModelInferRequest()
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message
