"""Compare the reader of the wire format with protobuf."""

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from app.grpc.messages import ModelInferRequest
from frameworks.core.protobuf_wire import (
    FieldReader,
    TooManyFields,
    WireError,
    count_varints,
    decode_varints,
    read_varint,
    write_field,
    write_varint,
)

CONTENTS = ModelInferRequest().inputs.add().contents.__class__


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varint_reads_back(number: int, after: bytes) -> None:
    written = write_varint(number)
    assert read_varint(written + after, 0, len(written) + len(after)) == (number, len(written))


@pytest.mark.parametrize("serialized", [b"", b"\x80", b"\xff" * 11])
def test_varint_without_end_refused(serialized: bytes) -> None:
    with pytest.raises(WireError):
        read_varint(serialized, 0, len(serialized))


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(10, 40))
def test_packed_varints_equal_protobuf(numbers: list[int], max_bytes: int) -> None:
    packed = memoryview(b"".join(map(write_varint, numbers)))
    assert count_varints(packed) == len(numbers)
    decoded = [number for window in decode_varints(packed, max_bytes) for number in window.tolist()]
    assert decoded == list(CONTENTS.FromString(write_field(5, packed)).uint64_contents) == numbers


@pytest.mark.parametrize("packed", [b"\x80" * 11 + b"\x01", b"\x80"])
def test_packed_varint_without_end_refused(packed: bytes) -> None:
    with pytest.raises(WireError):
        list(decode_varints(memoryview(packed), 100))


def test_count_of_unfinished_varints_refused() -> None:
    with pytest.raises(WireError):
        count_varints(memoryview(b"\x01\x80"))


def test_packed_varint_longer_than_window_refused() -> None:
    with pytest.raises(WireError):
        list(decode_varints(memoryview(b"\x80" * 100), 20))


@given(st.binary(max_size=60))
def test_fields_cover_every_message(serialized: bytes) -> None:
    """Every message that protobuf reads has fields without a gap, or a group."""
    try:
        ModelInferRequest.FromString(serialized)
    except DecodeError:
        return
    at = 0
    try:
        for _, _, start, value, end in FieldReader(serialized, 100).fields(0, len(serialized)):
            assert start == at < value <= end
            at = end
    except WireError as error:
        assert "wire type" in str(error)  # noqa: PT017 - either outcome is right
        return
    assert at == len(serialized)


@pytest.mark.parametrize("serialized", [b"\x0a\x05abc", b"\x0a", b"\x0d\x00", b"\x09" + bytes(7), b"\x08", b"\x0b"])
def test_message_that_ends_within_field_refused(serialized: bytes) -> None:
    with pytest.raises(WireError):
        list(FieldReader(serialized, 10).fields(0, len(serialized)))


def test_fields_counted_over_submessages() -> None:
    serialized = b"\x0a\x00" * 6
    reader = FieldReader(serialized, 10)
    assert len(list(reader.fields(0, len(serialized)))) == 6
    fields: Any = reader.fields(0, len(serialized))
    assert len([next(fields) for _ in range(4)]) == 4
    with pytest.raises(TooManyFields):
        next(fields)


def test_many_fields_found_without_reading_all() -> None:
    serialized = b"\x0a\x00" * 1_000_000
    reader = FieldReader(serialized, 5)
    with pytest.raises(TooManyFields):
        list(reader.fields(0, len(serialized)))
    assert reader.num_fields == 6


def test_windows_are_bounded() -> None:
    windows = list(decode_varints(memoryview(b"\x01" * 1000), 64))
    assert [len(window) for window in windows] == [64] * 15 + [40]
    assert all(window.dtype == np.uint64 for window in windows)
