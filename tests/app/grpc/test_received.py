"""Compare how large messages are read with protobuf, and check the bounds of hostile ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.grpc.call import GrpcError
from app.grpc.infer_messages import parse_request
from app.grpc.messages import ModelInferRequest, PredictRequest, parse
from app.grpc.received import LARGE_BYTES, MAX_FIELDS, MAX_REST_BYTES, MAX_TENSORS, read_infer, read_predict
from app.protocols.open_inference.datatypes import MAX_STRINGS
from app.protocols.open_inference.infer_types import ParsedRequest
from frameworks.core.errors import InvalidInput
from frameworks.core.protobuf_wire import write_field
from tests.app.protocols.native.specs import model
from tests.support import hostile_grpc

NEVER_LARGE = 2**40
SPEC = model()
SIZE = 2 * 1024 * 1024


def parsed(serialized: bytes, large_bytes: int) -> ParsedRequest | str:
    """Return the request, or what it is refused with."""
    try:
        return parse_request(read_infer(serialized, large_bytes), SPEC)
    except (GrpcError, InvalidInput) as error:
        return type(error).__name__


def assert_equal(one: ParsedRequest | str, other: ParsedRequest | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        # An error of the wire format within contents names the field, where protobuf refuses the message.
        assert isinstance(one, str)
        assert isinstance(other, str)
        return
    assert (one.outputs, one.id, one.parameters) == (other.outputs, other.id, other.parameters)
    assert len(one.inputs) == len(other.inputs)
    for mine, theirs in zip(one.inputs, other.inputs, strict=True):
        assert (mine.name, mine.datatype, mine.parameters) == (theirs.name, theirs.datatype, theirs.parameters)
        np.testing.assert_array_equal(mine.value, theirs.value, strict=True)


def message(**contents: list[Any]) -> Any:
    request = ModelInferRequest(model_name="m", id="7")
    request.parameters["priority"].int64_param = 3
    request.outputs.add(name="y").parameters["classification"].int64_param = 2
    for field, elements in contents.items():
        datatype = {"fp32": "FP32", "int": "INT32", "int64": "INT64", "bytes": "BYTES", "bool": "BOOL"}[field]
        tensor = request.inputs.add(name=field, datatype=datatype, shape=[len(elements)])
        tensor.parameters["a"].bool_param = True
        getattr(tensor.contents, f"{field}_contents").extend(elements)
    return request


WHOLE = message(
    fp32=[1.5, -2.0], int=[-1, 2**31 - 1], int64=[-(2**63), 7], bytes=[b"", "ž".encode()], bool=[True, False]
).SerializeToString()


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
@settings(max_examples=200)
def test_changed_byte_reads_as_protobuf_reads_it(position: int, byte: int) -> None:
    changed = bytearray(WHOLE)
    changed[position] = byte
    # Protobuf accepts groups, which no field of these messages is.
    if byte & 7 in (3, 4):
        return
    assert_equal(parsed(bytes(changed), 0), parsed(bytes(changed), NEVER_LARGE))


@given(st.binary(max_size=40))
@example(b"\x2a\x04\x2a\x02\x32\x00")
def test_any_bytes_read_or_refused(serialized: bytes) -> None:
    parsed(serialized, 0)


def tensor_of(contents: bytes, datatype: bytes = b"FP32", count: int = 3) -> bytes:
    """Return a request with one input of this serialized InferTensorContents."""
    given = b"\x0a\x01x\x12" + bytes([len(datatype)]) + datatype + b"\x1a\x01" + bytes([count]) + contents
    return write_field(5, given)


@pytest.mark.parametrize(
    "serialized",
    [
        tensor_of(b"\x2a\x0f" + (b"\x35" + bytes(4)) * 3),  # unpacked
        tensor_of(b"\x2a\x0b\x32\x04\x00\x00\x80\x3f\x35\x00\x00\x00\x40\x2a\x06\x32\x04\x00\x00\x00\x41"),  # merged
        tensor_of(b"\x2a\x06\x10\x01\x10\x02\x10\x03", b"INT32"),
        tensor_of(b"\x2a\x05\x12\x03\x01\x02\x03", b"INT32"),
        tensor_of(b"\x2a\x0c\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"INT8", 1),
        tensor_of(b"\x2a\x00\x2a\x00", b"FP32", 0),
        tensor_of(b"", b"FP32", 0),
        tensor_of(b"\x2a\x06\x78\x01\x42\x02ab", b"BYTES", 1),
        tensor_of(b"\x2a\x08\x42\x01a\x42\x03b", b"BYTES", 2),
        tensor_of(b"\x2a\x05\x32\x03abc", b"FP32", 1),
        tensor_of(b"\x2a\x03\x0a\x01\x02", b"BOOL", 1),
    ],
)
def test_unusual_contents_read_as_protobuf_reads_them(serialized: bytes) -> None:
    assert_equal(parsed(serialized, 0), parsed(serialized, NEVER_LARGE))


def test_numbers_of_large_message_are_views_of_it() -> None:
    serialized = hostile_grpc.typed_floats("m", 4 * LARGE_BYTES)
    received = read_infer(serialized)
    assert received.contents is not None
    assert not received.message.inputs[0].HasField("contents")
    (tensor,) = parse_request(received, SPEC).inputs
    assert tensor.value.shape == (LARGE_BYTES,)
    raw = ModelInferRequest(model_name="m")
    raw.inputs.add(name="x", datatype="UINT8", shape=[LARGE_BYTES])
    raw.raw_input_contents.append(bytes(LARGE_BYTES))
    (tensor,) = parse_request(read_infer(raw.SerializeToString()), SPEC).inputs
    assert isinstance(tensor.value.base, np.ndarray)
    assert not tensor.value.flags.owndata


@pytest.mark.parametrize("name", sorted(hostile_grpc.HOSTILE_TO_FLOAT_MODEL))
def test_hostile_message_refused_within_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(kind: Any, serialized: bytes) -> Any:
        lengths.append(len(serialized))
        return parse(kind, serialized)

    monkeypatch.setattr("app.grpc.received.parse", counted)
    serialized = hostile_grpc.HOSTILE_TO_FLOAT_MODEL[name]("m", SIZE)
    assert isinstance(parsed(serialized, LARGE_BYTES), str)
    assert all(length <= MAX_REST_BYTES for length in lengths)


@pytest.mark.parametrize(
    ("serialized", "message"),
    [
        (hostile_grpc.empty_inputs("m", SIZE), f"inputs: expected at most {MAX_TENSORS} tensors, got more"),
        (hostile_grpc.empty_outputs("m", SIZE), f"ModelInferRequest: expected at most {MAX_FIELDS} fields"),
        (hostile_grpc.long_model_name(SIZE), f"ModelInferRequest: expected at most {MAX_REST_BYTES} bytes"),
        (hostile_grpc.long_varints("m", SIZE), r"expected a inference\.ModelInferRequest, got no number at byte 3"),
    ],
    ids=["inputs", "outputs", "name", "varints"],
)
def test_message_beyond_bounds_is_invalid_argument(serialized: bytes, message: str) -> None:
    with pytest.raises(GrpcError, match=message) as raised:
        read_infer(serialized)
    assert raised.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("build", [hostile_grpc.raw_strings, hostile_grpc.typed_strings])
def test_too_many_strings_refused_before_decoding(build: Any) -> None:
    received = read_infer(build("m", 8 * MAX_STRINGS))
    with pytest.raises(InvalidInput, match=f"inputs: expected at most {MAX_STRINGS} strings in one request"):
        parse_request(received, SPEC)


def test_strings_of_all_tensors_counted() -> None:
    request = ModelInferRequest(model_name="m")
    for name in "ab":
        request.inputs.add(name=name, datatype="BYTES", shape=[MAX_STRINGS // 2 + 1])
    request.raw_input_contents.extend([bytes(4 * (MAX_STRINGS // 2 + 1))] * 2)
    with pytest.raises(InvalidInput, match="strings in one request"):
        parse_request(read_infer(request.SerializeToString()), SPEC)


def test_unpacked_numbers_beyond_bound_refused() -> None:
    received = read_infer(hostile_grpc.typed_floats("m", SIZE, packed=False))
    with pytest.raises(InvalidInput, match="expected packed numbers"):
        parse_request(received, SPEC)


@given(st.lists(st.floats(width=32), max_size=8), st.lists(st.integers(0, 2**40), max_size=3), st.booleans())
def test_predict_reads_as_protobuf_reads_it(numbers: list[float], shape: list[int], packed: bool) -> None:
    rest = PredictRequest(shape=shape, model_name="m").SerializeToString()
    values = np.array(numbers, "<f4")
    data = write_field(1, values.tobytes())
    if not packed:
        data = b"".join(b"\x0d" + value.tobytes() for value in values)
    whole = read_predict(data + rest, NEVER_LARGE)
    split = read_predict(data + rest, 0)
    assert split.data is not None
    assert (list(split.message.shape), split.message.model_name) == (shape, "m")
    given = np.frombuffer(b"".join(split.data), "<f4")
    np.testing.assert_array_equal(given, np.array(whole.message.data, np.float32), strict=True)


@pytest.mark.parametrize(
    ("serialized", "message"),
    [
        (hostile_grpc.predict_floats("m", SIZE, packed=False), f"PredictRequest: expected at most {MAX_FIELDS} fields"),
        (hostile_grpc.predict_shape("m", SIZE), f"PredictRequest: expected at most {MAX_REST_BYTES} bytes"),
        (write_field(1, bytes(LARGE_BYTES + 1)), r"expected a inference\.PredictRequest, got packed"),
    ],
    ids=["floats", "shape", "packed"],
)
def test_hostile_predict_refused(serialized: bytes, message: str) -> None:
    with pytest.raises(GrpcError, match=message):
        read_predict(serialized)
