"""Messages that are not read again give the requests that reading them again would give."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.grpc.infer_messages import parse_request
from app.grpc.messages import ModelInferRequest
from app.grpc.received import read_infer
from app.grpc.repeated_messages import KnownMessages
from app.grpc.transport.calls import ReceivedCall
from app.protocols.open_inference.infer_request import check_request
from app.protocols.open_inference.infer_types import InferRequest
from frameworks.core.protobuf_wire import write_field
from frameworks.types import Array, TensorBatch, TensorType
from tests.app.protocols.native.specs import one

SPEC = one(TensorType("float32", None))
CALL = ReceivedCall((), "127.0.0.1:1")
RAW = 7


def message(values: list[float], **fields: Any) -> bytes:
    request = ModelInferRequest(model_name="vector", **fields)
    request.inputs.add(name="x", datatype="FP32", shape=[1, len(values)])
    request.raw_input_contents.append(np.array(values, "<f4").tobytes())
    serialized: bytes = request.SerializeToString(deterministic=True)
    return serialized


def decode(serialized: bytes) -> InferRequest:
    return check_request(parse_request(read_infer(serialized), SPEC), SPEC)


def noted(*messages: bytes) -> KnownMessages:
    known = KnownMessages()
    for each in messages:
        known.note(each, "vector", "", decode(each))
    return known


def plain(request: InferRequest) -> tuple[Any, ...]:
    """The request in values that can be compared."""
    assert isinstance(request.request, TensorBatch)
    inputs = [
        (name, value.dtype, value.shape, value.tobytes())
        for name, value in request.request.inputs.items()
        if isinstance(value, np.ndarray)
    ]
    return inputs, request.request.output_names, *request[2:]


def test_repeated_message_is_known_by_its_head() -> None:
    known = noted(message([1, 2]), message([3, 4]))
    sent = message([5, 6])
    found = known.find(sent)
    assert found is not None
    assert (found.model, found.version) == ("vector", "")
    assert plain(found.decode(sent, CALL)) == plain(decode(sent))
    for other in (message([5, 6, 7]), message([5, 6], id="7"), message([5, 6], model_version="2")):
        assert known.find(other) is None


def test_message_seen_once_is_read_again() -> None:
    assert noted(message([1, 2])).find(message([1, 2])) is None


def test_contents_before_other_fields_are_read_again() -> None:
    """The last bytes are then no contents, also where they look like them."""
    values = np.array([1, 2], "<f4").tobytes()
    rest = ModelInferRequest(model_name="vector")
    rest.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    first = rest.SerializeToString(deterministic=True) + write_field(RAW, values)
    assert noted(first, first).find(first) is not None
    hidden = (
        write_field(RAW, values) + rest.SerializeToString(deterministic=True) + write_field(3, write_field(RAW, b"a"))
    )
    assert noted(hidden, hidden).find(hidden) is None


@pytest.mark.parametrize("value", [np.zeros((1, 2), bool), np.zeros((1, 2), np.float64), np.ones((1, 2), np.float32)])
def test_converted_values_are_read_again(value: Array) -> None:
    """Of BF16 and BOOL, for example."""
    sent = message([0, 0])
    decoded = decode(sent)._replace(request=TensorBatch({"x": value}, ("y",)))
    known = KnownMessages()
    for _ in range(2):
        known.note(sent, "vector", "", decoded)
    assert known.find(sent) is None


def test_known_messages_are_bounded() -> None:
    known = KnownMessages()
    for size in range(1, 600):
        for name in "abcdefghij":
            sent = message([0.0] * size, id=name)
            known.note(sent, "vector", "", decode(sent))
    assert len(known._known) <= 256
    assert max(map(len, known._known.values())) <= 8


def test_message_with_long_head_is_read_again() -> None:
    long = message([1, 2], id="x" * 2000)
    assert noted(long, long).find(long) is None


def test_clients_with_heads_of_one_length_are_known() -> None:
    heads = [message([1, 2], id=name) for name in "abcd"]
    known = KnownMessages()
    for _ in range(16):
        for each in heads:
            if known.find(each) is None:
                known.note(each, "vector", "", decode(each))
    assert sum(known.find(each) is not None for each in heads) >= 3


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=4),
    st.sampled_from([{}, {"id": "a"}, {"model_version": "1"}]),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
)
def test_changed_bytes_are_never_misread(
    values: list[float], fields: dict[str, str], changes: list[tuple[int, int]]
) -> None:
    sent = message(values, **fields)
    known = noted(sent, sent)
    changed = bytearray(sent)
    for at, byte in changes:
        changed[at % len(changed)] = byte
    found = known.find(bytes(changed))
    if found is not None:
        assert plain(found.decode(bytes(changed), CALL)) == plain(decode(bytes(changed)))
    else:
        assert bytes(changed[: len(sent) - 4 * len(values)]) != sent[: -4 * len(values)]
