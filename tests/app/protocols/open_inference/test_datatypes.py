"""Tensors as bytes: what goes out comes in again to the last bit, and bytes that are no such tensor are refused."""

import struct
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.protocols.open_inference.datatypes import DATATYPES, DTYPES, from_raw, numpy_dtype, to_raw
from frameworks.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES, Array

NUMBERS = [datatype for datatype in DTYPES if datatype not in ("BYTES", "BF16")]


def refusal(raw: bytes, datatype: str, *shape: int) -> str:
    with pytest.raises(InvalidInput) as caught:
        from_raw(raw, datatype, shape, "inputs.x")
    assert caught.value.field.startswith("inputs.x")
    return caught.value.message


def strings(*texts: str | bytes) -> bytes:
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def objects(texts: list[Any], *shape: int) -> Array:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape or (len(texts),))


def test_every_dtype_has_a_datatype() -> None:
    assert DATATYPES.keys() == NUMPY_DTYPES.keys()
    assert numpy_dtype("FP16", "x") == np.float16
    for unknown in ("FP8", "float32", "", 3, None, ["FP32"]):
        with pytest.raises(InvalidInput, match=r"^x\.datatype: .*wants one of BOOL, UINT8"):
            numpy_dtype(unknown, "x")


@given(st.data())
def test_numbers_travel_to_the_last_bit(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(NUMBERS))
    array = data.draw(arrays.arrays(NUMPY_DTYPES[DTYPES[datatype]], arrays.array_shapes(min_dims=0, min_side=0)))
    raw = bytes(to_raw(array, datatype))
    assert raw == array.astype(array.dtype.newbyteorder("<")).tobytes()
    came = from_raw(raw, datatype, array.shape, "x")
    assert (came.dtype, came.shape, came.tobytes()) == (array.dtype, array.shape, array.tobytes())


@given(arrays.arrays(np.uint16, arrays.array_shapes(min_dims=0, min_side=0)))
def test_bfloat16_travels_to_the_last_bit(bits: Array) -> None:
    came = from_raw(bits.tobytes(), "BF16", bits.shape, "x")
    assert isinstance(came, np.ndarray)
    assert came.dtype == np.float32
    assert came.shape == bits.shape
    assert bytes(to_raw(came, "BF16")) == bits.tobytes()


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    numbers = np.array([1.0, -2.5, 0.10009765625, np.inf], np.float32)
    assert bytes(to_raw(numbers, "BF16")) == b"\x80\x3f\x20\xc0\xcd\x3d\x80\x7f"
    assert from_raw(b"\x80\x3f\x20\xc0\xcd\x3d\x80\x7f", "BF16", (4,), "x").tolist() == numbers.tolist()


@given(arrays.arrays(object, arrays.array_shapes(min_side=0, max_side=4), elements=st.text(max_size=5)))
def test_strings_travel(array: Array) -> None:
    raw = to_raw(array, "BYTES")
    assert raw == strings(*array.reshape(-1).tolist())
    came = from_raw(raw, "BYTES", array.shape, "x")
    assert (came.shape, came.tolist()) == (array.shape, array.tolist())


def test_nothing_is_copied_where_it_can_be_a_view() -> None:
    raw = np.arange(8, dtype=np.float32).tobytes()
    view = from_raw(memoryview(raw)[4:], "FP32", (7,), "x")
    assert np.shares_memory(view, np.frombuffer(raw, np.uint8))
    assert not view.flags.writeable
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert np.shares_memory(np.frombuffer(to_raw(array, "INT64"), np.uint8), array)
    # What does not lie as it travels is copied.
    assert bytes(to_raw(array.T, "INT64")) == np.ascontiguousarray(array.T).tobytes()


def test_numbers_between_two_places_of_memory_are_moved() -> None:
    raw = b"?" + np.arange(4, dtype=np.float64).tobytes()
    moved = from_raw(memoryview(raw)[1:], "FP64", (4,), "x")
    assert moved.flags.aligned
    assert moved.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("datatype", [*NUMBERS, "BF16"])
def test_a_wrong_number_of_bytes(datatype: str) -> None:
    size = 2 if datatype == "BF16" else NUMPY_DTYPES[DTYPES[datatype]].itemsize
    for wrong in (0, size - 1, 6 * size - 1, 6 * size + 1, 7 * size):
        message = refusal(bytes(wrong), datatype, 2, 3)
        assert message == f"inputs.x: has {wrong} bytes, and {datatype} of shape [2, 3] takes {6 * size}"
    assert refusal(b"\0", datatype, 0, 3).startswith("inputs.x: has 1 bytes")
    assert refusal(b"", datatype).startswith("inputs.x: has 0 bytes")


def test_a_bool_is_0_or_1() -> None:
    assert from_raw(b"\1\0", "BOOL", (2,), "x").tolist() == [True, False]
    assert refusal(b"\1\2", "BOOL", 2) == "inputs.x: holds the byte 2; BOOL is 0 or 1"


@pytest.mark.parametrize(
    ("raw", "shape", "words"),
    [
        (b"", (1,), "has 0 bytes, too few for the lengths of 1 strings"),
        (b"\0\0\0", (1,), "has 3 bytes, too few"),
        (strings("a", "b"), (3,), "has 10 bytes, too few for the lengths of 3 strings"),
        (strings("abcdef"), (2,), "its 10 bytes end within string 1 of 2"),
        (strings("abcdef")[:-1], (1,), "its 9 bytes end within string 0 of 1"),
        (b"\xff\xff\xff\xff", (1,), "its 4 bytes end within string 0 of 1"),
        (strings("a", "b"), (1,), "has 10 bytes, and its 1 strings end after 5"),
        (strings("a"), (0, 2), "has 5 bytes, and its 0 strings end after 0"),
        (strings("a", b"\xc3\x28"), (2,), "string 1 of 2 is no UTF-8: invalid continuation byte"),
        (strings(b"\xed\xa0\x80"), (1,), "string 0 of 1 is no UTF-8"),
    ],
)
def test_bytes_that_are_no_strings(raw: bytes, shape: tuple[int, ...], words: str) -> None:
    assert refusal(raw, "BYTES", *shape).startswith(f"inputs.x: {words}")


@given(st.binary(max_size=40), st.sampled_from([*DTYPES]), st.lists(st.integers(0, 3), max_size=3))
def test_any_bytes_are_a_tensor_or_refused(raw: bytes, datatype: str, shape: list[int]) -> None:
    try:
        came = from_raw(raw, datatype, tuple(shape), "x")
    except InvalidInput:
        return
    assert (came.shape, came.size) == (tuple(shape), prod(shape))
    assert bytes(to_raw(came, datatype)) == raw


def test_a_string_may_be_long() -> None:
    text = "ä" * 100_000
    assert from_raw(to_raw(objects([text, ""]), "BYTES"), "BYTES", (2,), "x").tolist() == [text, ""]
