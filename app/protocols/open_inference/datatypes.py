"""The protocol's datatypes and ours, and tensors as the bytes of its binary extension: little-endian, row by row."""

from collections.abc import Iterator
from math import prod

import numpy as np

from frameworks.errors import InvalidInput
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
"""The protocol's name → the dtype of frameworks.types."""

DATATYPES: dict[str, str] = {dtype: datatype for datatype, dtype in DTYPES.items()}
"""The dtype of frameworks.types → the protocol's name."""

BINARY_ONLY = frozenset({"FP16", "BF16"})
"""Datatypes that have no form in JSON."""

_LENGTH_BYTES = 4
# As they travel; BYTES have no size of their own.
_ITEMS = {name: NUMPY_DTYPES[dtype].newbyteorder("<") for name, dtype in DTYPES.items() if name != "BYTES"}
_ITEMS["BF16"] = np.dtype("<u2")


def numpy_dtype(datatype: object, field: str) -> "np.dtype[np.generic]":
    """The numpy type of a datatype's values, as frameworks.types has it. Raises InvalidInput for none of them."""
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        given = f'"{datatype[:40]}"' if isinstance(datatype, str) else "no string"
        raise InvalidInput(f"{field}.datatype", f"is {given}; wants one of {', '.join(DTYPES)}")
    return NUMPY_DTYPES[dtype]


def item_bytes(datatype: str) -> int:
    """Of a number as it travels."""
    return _ITEMS[datatype].itemsize


def from_raw(buffer: Raw, datatype: str, shape: tuple[int, ...], field: str) -> Array:
    """A tensor from its bytes: a view on them, read-only where they are, if they lie as numpy has its numbers.

    `shape`: as read_sizes of app/protocols/shapes.py gives it. BF16 is widened to float32, BYTES become str. Raises
    InvalidInput, which names `field`, where the bytes are not just this tensor.
    """
    numpy_dtype(datatype, field)
    count = prod(shape)
    if datatype == "BYTES":
        return _read_strings(buffer, count, field).reshape(shape)
    item = _ITEMS[datatype]
    if len(buffer) != count * item.itemsize:
        raise InvalidInput(
            field,
            f"has {len(buffer)} bytes, and {datatype} of shape {list(shape)} takes {count * item.itemsize}",
        )
    flat: Array = np.frombuffer(buffer, item) if count else np.empty(0, item)
    if datatype == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    elif datatype == "BOOL" and count and flat.view(np.uint8).max() > 1:
        raise InvalidInput(field, f"holds the byte {flat.view(np.uint8).max()}; BOOL is 0 or 1")
    # What computes on it may rely on that its numbers stand where such numbers do; what does not is slow besides.
    return (flat if flat.flags.aligned else flat.copy()).reshape(shape)


def to_raw(array: Array, datatype: str) -> bytes | memoryview:
    """The bytes of a tensor: those that it has, where they lie as they travel. `array`: as frameworks.types has it."""
    if not array.size:
        return b""
    if datatype == "BYTES":
        return b"".join(_written_strings(array))
    flat = np.ascontiguousarray(array).reshape(-1)
    if datatype == "BF16":
        # Each number is exactly a bfloat16: its lower half is zeros.
        flat = (flat.view(np.uint32) >> 16).astype(np.uint16)
    return flat.astype(_ITEMS[datatype], copy=False).view(np.uint8).data


def _read_strings(buffer: Raw, count: int, field: str) -> Array:
    """Each is its length in bytes, of 32 bits, and UTF-8."""
    view, at = memoryview(buffer), 0
    end = len(view)
    if count * _LENGTH_BYTES > end:
        raise InvalidInput(field, f"has {end} bytes, too few for the lengths of {count} strings")
    strings = np.empty(count, dtype=object)
    for i in range(count):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(view[at:start], "little")
        if start > end or at > end:
            raise InvalidInput(field, f"its {end} bytes end within string {i} of {count}")
        try:
            strings[i] = str(view[start:at], "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(field, f"string {i} of {count} is no UTF-8: {error.reason}") from None
    if at != end:
        raise InvalidInput(field, f"has {end} bytes, and its {count} strings end after {at}")
    return strings


def _written_strings(array: Array) -> Iterator[bytes]:
    for text in array.reshape(-1).tolist():
        encoded = text.encode()
        yield len(encoded).to_bytes(_LENGTH_BYTES, "little")
        yield encoded
