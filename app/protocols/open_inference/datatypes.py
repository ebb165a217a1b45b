"""Convert between datatypes and numpy types, and between tensors and their bytes (little-endian, row-major)."""

import time
from collections.abc import Iterator
from math import prod
from struct import Struct

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES, Array

Raw = bytes | bytearray | memoryview

DTYPES: dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
    "BYTES": "string",
}
"""The protocol's datatype → the dtype of frameworks.types."""

DATATYPES: dict[str, str] = {dtype: datatype for datatype, dtype in DTYPES.items()}
"""The dtype of frameworks.types → the protocol's datatype."""

BINARY_ONLY = frozenset({"FP16", "BF16"})
"""Datatypes that JSON cannot represent."""

MAX_STRINGS = 2**17
"""Strings in the binary BYTES tensors of one request.

Reading as many takes 50 ms, in steps. ONNX Runtime holds the interpreter's lock for 13 ms to convert them.
"""

_COPIED_BYTES = 4096
_LENGTH_BYTES = 4
_UNPACK_LENGTH = Struct("<I").unpack_from
_WINDOW_BYTES = 64 * 1024
# Strings that are decoded without a pause, in about two milliseconds. As many fit a tensor that the event loop decodes.
_STRINGS_AT_ONCE = 4096
# The numpy types of the bytes. BYTES have no fixed size.
_WIRE_DTYPES = {name: NUMPY_DTYPES[dtype].newbyteorder("<") for name, dtype in DTYPES.items() if name != "BYTES"}
_WIRE_DTYPES["BF16"] = np.dtype("<u2")
# The interpreter passes its lock on after 5 ms, and the loop would wait as long after each of its own pauses.
_PAUSE_S = 50e-6


def numpy_dtype(datatype: object, field: str) -> "np.dtype[np.generic]":
    """Return the numpy type of a datatype's values, as in frameworks.types. Raises InvalidInput for an unknown one."""
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        given = f'"{datatype[:40]}"' if isinstance(datatype, str) else "another type"
        raise InvalidInput(f"{field}.datatype", f"expected one of {', '.join(DTYPES)}, got {given}")
    return NUMPY_DTYPES[dtype]


def item_bytes(datatype: str) -> int:
    """Return the number of bytes of one element; not for BYTES."""
    return _WIRE_DTYPES[datatype].itemsize


def describe_binary_only(datatype: str) -> str:
    """Explain why a tensor of this datatype is not read from or written to JSON."""
    return f"JSON cannot represent {datatype}, which needs binary data"


def decode_tensor(buffer: Raw, datatype: str, shape: tuple[int, ...], field: str) -> Array:
    """Decode a tensor from its bytes; where alignment allows, the result is a view of the buffer.

    `shape`: as checked by read_sizes of app/protocols/shared/json/shapes.py. BF16 is widened to float32, BYTES become
    str. Raises InvalidInput, which names `field`, where the bytes are not exactly this tensor.
    """
    numpy_dtype(datatype, field)
    count = prod(shape)
    if datatype == "BYTES":
        return _decode_strings(buffer, count, field).reshape(shape)
    item = _WIRE_DTYPES[datatype]
    if len(buffer) != count * item.itemsize:
        raise InvalidInput(
            field,
            f"expected {count * item.itemsize} bytes for {datatype} of shape {list(shape)}, got {len(buffer)}",
        )
    flat: Array = np.frombuffer(buffer, item) if count else np.empty(0, item)
    if datatype == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    elif datatype == "BOOL" and count and flat.view(np.uint8).max() > 1:
        raise InvalidInput(field, f"expected the bytes 0 and 1 for BOOL, got {flat.view(np.uint8).max()}")
    # Some kernels require aligned numbers, and the others are slower on unaligned ones.
    return (flat if flat.flags.aligned else flat.copy()).reshape(shape)


def encode_tensor(array: Array, datatype: str) -> bytes | memoryview:
    """Return the bytes of a tensor; a view of its memory where that is long and already the wire format."""
    if not array.size:
        return b""
    if datatype == "BYTES":
        return b"".join(_encode_strings(array))
    if array.nbytes <= _COPIED_BYTES and array.dtype == _WIRE_DTYPES[datatype]:
        return array.tobytes()  # a copy of few bytes takes less time than a view
    flat = np.ascontiguousarray(array).reshape(-1)
    if datatype == "BF16":
        # Every value is exactly a bfloat16: the lower half of its float32 is zero.
        flat = (flat.view(np.uint32) >> 16).astype(np.uint16)
    return flat.astype(_WIRE_DTYPES[datatype], copy=False).view(np.uint8).data


def check_num_strings(count: int, field: str) -> None:
    """Raise InvalidInput for more strings than one request may have."""
    if count > MAX_STRINGS:
        raise InvalidInput(
            field, f"expected at most {MAX_STRINGS} strings in one request, got {count}; send several requests"
        )


def _decode_strings(buffer: Raw, count: int, field: str) -> Array:
    """Decode strings: each is its length in bytes, as 32 bits, and then UTF-8. Long ones in a thread."""
    view, end = memoryview(buffer), len(buffer)
    if count * _LENGTH_BYTES > end:
        raise InvalidInput(
            field, f"expected at least {count * _LENGTH_BYTES} bytes for the lengths of {count} strings, got {end}"
        )
    check_num_strings(count, field)
    strings = np.empty(count, dtype=object)
    at = 0
    for first in range(0, count, _STRINGS_AT_ONCE):
        if first:
            pause()
        last = min(first + _STRINGS_AT_ONCE, count)
        at = _decode_some(view, at, strings, range(first, last), field)
    if at != end:
        raise InvalidInput(field, f"expected {at} bytes for {count} strings, got {end}")
    return strings


def _decode_some(view: memoryview, at: int, strings: Array, indices: range, field: str) -> int:
    """Decode the strings of these indices, of which the first begins at `at`; return where the last one ends."""
    # Slices of bytes take half the time of slices of a memoryview.
    window, base = b"", at
    for i in indices:
        start = at - base + _LENGTH_BYTES
        if start > len(window):
            window, base, start = bytes(view[at : at + _WINDOW_BYTES]), at, _LENGTH_BYTES
            if len(window) < _LENGTH_BYTES:
                raise _ends_within(view, strings, i, field)
        end = start + _UNPACK_LENGTH(window, start - _LENGTH_BYTES)[0]
        encoded = window[start:end] if end <= len(window) else bytes(view[base + start : base + end])
        if len(encoded) != end - start:
            raise _ends_within(view, strings, i, field)
        try:
            strings[i] = encoded.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(field, f"expected UTF-8 in string {i} of {len(strings)}, got {error.reason}") from None
        at = base + end
    return at


def _ends_within(view: memoryview, strings: Array, i: int, field: str) -> InvalidInput:
    return InvalidInput(field, f"expected {len(strings)} strings, got {len(view)} bytes that end within string {i}")


def _encode_strings(array: Array) -> Iterator[bytes]:
    for text in array.reshape(-1).tolist():
        encoded = text.encode()
        yield len(encoded).to_bytes(_LENGTH_BYTES, "little")
        yield encoded


def pause() -> None:
    """Release the interpreter's lock for a moment. Call it after about a millisecond of work, in a thread only."""
    time.sleep(_PAUSE_S)
