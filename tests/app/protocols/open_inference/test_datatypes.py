"""Tensors as bytes: exact round trips, and refusals of bytes that do not match the tensor."""

import struct
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.protocols.open_inference.datatypes import DATATYPES, DTYPES, decode_tensor, encode_tensor, numpy_dtype
from frameworks.core.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES, Array

NUMBERS = [datatype for datatype in DTYPES if datatype not in ("BYTES", "BF16")]


def refusal(raw: bytes, datatype: str, *shape: int) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode_tensor(raw, datatype, shape, "inputs.x")
    assert caught.value.field.startswith("inputs.x")
    return caught.value.message


def strings(*texts: str | bytes) -> bytes:
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def objects(texts: list[Any], *shape: int) -> Array:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape or (len(texts),))


def test_numpy_dtype_knows_every_datatype() -> None:
    assert DATATYPES.keys() == NUMPY_DTYPES.keys()
    assert numpy_dtype("FP16", "x") == np.float16
    for unknown in ("FP8", "float32", "", 3, None, ["FP32"]):
        with pytest.raises(InvalidInput, match=r"^x\.datatype: expected one of BOOL, UINT8.* got "):
            numpy_dtype(unknown, "x")


@given(st.data())
def test_number_round_trip_is_exact(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(NUMBERS))
    array = data.draw(arrays.arrays(NUMPY_DTYPES[DTYPES[datatype]], arrays.array_shapes(min_dims=0, min_side=0)))
    raw = bytes(encode_tensor(array, datatype))
    assert raw == array.astype(array.dtype.newbyteorder("<")).tobytes()
    decoded = decode_tensor(raw, datatype, array.shape, "x")
    assert (decoded.dtype, decoded.shape, decoded.tobytes()) == (array.dtype, array.shape, array.tobytes())


@given(arrays.arrays(np.uint16, arrays.array_shapes(min_dims=0, min_side=0)))
def test_bfloat16_round_trip_is_exact(bits: Array) -> None:
    decoded = decode_tensor(bits.tobytes(), "BF16", bits.shape, "x")
    assert isinstance(decoded, np.ndarray)
    assert decoded.dtype == np.float32
    assert decoded.shape == bits.shape
    assert bytes(encode_tensor(decoded, "BF16")) == bits.tobytes()


def test_bfloat16_is_upper_half_of_float32() -> None:
    numbers = np.array([1.0, -2.5, 0.10009765625, np.inf], np.float32)
    assert bytes(encode_tensor(numbers, "BF16")) == b"\x80\x3f\x20\xc0\xcd\x3d\x80\x7f"
    assert decode_tensor(b"\x80\x3f\x20\xc0\xcd\x3d\x80\x7f", "BF16", (4,), "x").tolist() == numbers.tolist()


@given(arrays.arrays(object, arrays.array_shapes(min_side=0, max_side=4), elements=st.text(max_size=5)))
def test_string_round_trip_is_exact(array: Array) -> None:
    raw = encode_tensor(array, "BYTES")
    assert raw == strings(*array.reshape(-1).tolist())
    decoded = decode_tensor(raw, "BYTES", array.shape, "x")
    assert (decoded.shape, decoded.tolist()) == (array.shape, array.tolist())


def test_tensors_are_views_where_possible() -> None:
    raw = np.arange(8, dtype=np.float32).tobytes()
    view = decode_tensor(memoryview(raw)[4:], "FP32", (7,), "x")
    assert np.shares_memory(view, np.frombuffer(raw, np.uint8))
    assert not view.flags.writeable
    array = np.arange(6000, dtype=np.int64).reshape(2, 3000)
    assert np.shares_memory(np.frombuffer(encode_tensor(array, "INT64"), np.uint8), array)
    # An array that is not contiguous is copied.
    assert bytes(encode_tensor(array.T, "INT64")) == np.ascontiguousarray(array.T).tobytes()


def test_decode_tensor_aligns_numbers() -> None:
    raw = b"?" + np.arange(4, dtype=np.float64).tobytes()
    moved = decode_tensor(memoryview(raw)[1:], "FP64", (4,), "x")
    assert moved.flags.aligned
    assert moved.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("datatype", [*NUMBERS, "BF16"])
def test_decode_tensor_refuses_wrong_size(datatype: str) -> None:
    size = 2 if datatype == "BF16" else NUMPY_DTYPES[DTYPES[datatype]].itemsize
    for wrong in (0, size - 1, 6 * size - 1, 6 * size + 1, 7 * size):
        message = refusal(bytes(wrong), datatype, 2, 3)
        assert message == f"inputs.x: expected {6 * size} bytes for {datatype} of shape [2, 3], got {wrong}"
    assert refusal(b"\0", datatype, 0, 3) == f"inputs.x: expected 0 bytes for {datatype} of shape [0, 3], got 1"
    assert refusal(b"", datatype) == f"inputs.x: expected {size} bytes for {datatype} of shape [], got 0"


def test_decode_tensor_refuses_other_bools() -> None:
    assert decode_tensor(b"\1\0", "BOOL", (2,), "x").tolist() == [True, False]
    assert refusal(b"\1\2", "BOOL", 2) == "inputs.x: expected the bytes 0 and 1 for BOOL, got 2"


@pytest.mark.parametrize(
    ("raw", "shape", "words"),
    [
        (b"", (1,), "expected at least 4 bytes for the lengths of 1 strings, got 0"),
        (b"\0\0\0", (1,), "expected at least 4 bytes for the lengths of 1 strings, got 3"),
        (strings("a", "b"), (3,), "expected at least 12 bytes for the lengths of 3 strings, got 10"),
        (strings("abcdef"), (2,), "expected 2 strings, got 10 bytes that end within string 1"),
        (strings("abcdef")[:-1], (1,), "expected 1 strings, got 9 bytes that end within string 0"),
        (b"\xff\xff\xff\xff", (1,), "expected 1 strings, got 4 bytes that end within string 0"),
        (strings("a", "b"), (1,), "expected 5 bytes for 1 strings, got 10"),
        (strings("a"), (0, 2), "expected 0 bytes for 0 strings, got 5"),
        (strings("a", b"\xc3\x28"), (2,), "expected UTF-8 in string 1 of 2, got invalid continuation byte"),
        (strings(b"\xed\xa0\x80"), (1,), "expected UTF-8 in string 0 of 1"),
    ],
)
def test_decode_tensor_refuses_invalid_strings(raw: bytes, shape: tuple[int, ...], words: str) -> None:
    assert refusal(raw, "BYTES", *shape).startswith(f"inputs.x: {words}")


@given(st.binary(max_size=40), st.sampled_from([*DTYPES]), st.lists(st.integers(0, 3), max_size=3))
def test_decode_tensor_decodes_or_refuses_any_bytes(raw: bytes, datatype: str, shape: list[int]) -> None:
    try:
        decoded = decode_tensor(raw, datatype, tuple(shape), "x")
    except InvalidInput:
        return
    assert (decoded.shape, decoded.size) == (tuple(shape), prod(shape))
    assert bytes(encode_tensor(decoded, datatype)) == raw


def test_decode_tensor_reads_long_strings() -> None:
    text = "ä" * 100_000
    assert decode_tensor(encode_tensor(objects([text, ""]), "BYTES"), "BYTES", (2,), "x").tolist() == [text, ""]
