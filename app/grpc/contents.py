"""Read typed contents: the fields of InferTensorContents, from a message or from the bytes of a large one."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from app.grpc.messages import Message, ModelInferRequest
from app.grpc.received import Span
from app.protocols.open_inference.datatypes import DTYPES, check_num_strings, encode_tensor, numpy_dtype, pause
from app.protocols.open_inference.infer_types import OutputTensor
from app.protocols.shared.json.tensors import narrow
from frameworks.core.errors import InvalidInput
from frameworks.core.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    FieldReader,
    Numbers,
    TooManyFields,
    WireError,
    WireField,
    count_varints,
    decode_varints,
    write_head,
)
from frameworks.types import NUMPY_DTYPES, Array

_CONTENTS_MESSAGE = type(ModelInferRequest.InferInputTensor().contents)
_NUMBERS: dict[str, int] = {name: field.number for name, field in _CONTENTS_MESSAGE.DESCRIPTOR.fields_by_name.items()}
_NAMES = {number: name for name, number in _NUMBERS.items()}
# Fields of one input's contents. A packed field counts once, with any number of values.
_MAX_PARTS = 8192
# Bytes of packed fields, and strings, that are decoded without a pause: about a millisecond each.
_WINDOW_BYTES = 64 * 1024
_STRINGS_AT_ONCE = 2048
# Elements of a response that are converted in one call, which holds the interpreter's lock.
_ELEMENTS_AT_ONCE = 8 * 1024


class Contents(NamedTuple):
    """The field that holds a datatype, its wire type unpacked, and the numpy dtype into which it is read."""

    field: str
    wire_type: int
    dtype: np.dtype[Any]

    @property
    def number(self) -> int:
        return _NUMBERS[self.field]


_INT = Contents("int_contents", VARINT, np.dtype(np.int64))
_UINT = Contents("uint_contents", VARINT, np.dtype(np.int64))
CONTENTS = {
    "BOOL": Contents("bool_contents", VARINT, np.dtype(np.bool_)),
    "INT8": _INT,
    "INT16": _INT,
    "INT32": _INT,
    "INT64": Contents("int64_contents", VARINT, np.dtype(np.int64)),
    "UINT8": _UINT,
    "UINT16": _UINT,
    "UINT32": _UINT,
    "UINT64": Contents("uint64_contents", VARINT, np.dtype(np.uint64)),
    "FP32": Contents("fp32_contents", FIXED32, np.dtype(np.float32)),
    "FP64": Contents("fp64_contents", FIXED64, np.dtype(np.float64)),
    "BYTES": Contents("bytes_contents", BYTES, np.dtype(object)),
}
"""Datatype → its field. FP16 and BF16 have none."""


def read_contents(
    contents: Message, datatype: str, shape: tuple[int, ...], field: str, has_files: bool = False
) -> Array:
    """Read the InferTensorContents of a message. `has_files`: BYTES stay bytes. Raises InvalidInput."""
    held = CONTENTS.get(datatype) or _contents_of(datatype, field)
    elements = getattr(contents, held.field)
    if len(elements) != prod(shape):
        others = [name for name in _NUMBERS if name != held.field and getattr(contents, name)]
        raise _wrong_count(datatype, shape, str(len(elements)), others, field)
    if datatype == "BYTES":
        return _read_strings(elements, len(elements), field, has_files).reshape(shape)
    value = np.array(elements, held.dtype)
    return narrow(value, DTYPES[datatype], f"{field}.contents").reshape(shape)


def read_large_contents(
    serialized: bytes, spans: list[Span], datatype: str, shape: tuple[int, ...], field: str, has_files: bool = False
) -> Array:
    """As `read_contents`, of the InferTensorContents in these spans of a large message. Call it in a thread."""
    _contents_of(datatype, field)
    count = prod(shape)
    try:
        if datatype == "BYTES":
            check_num_strings(count, field)
            strings = _strings(serialized, spans, shape, field)
            return _read_strings(strings, count, field, has_files).reshape(shape)
        return _read_numbers(serialized, spans, datatype, shape, field).reshape(shape)
    except WireError as error:
        raise InvalidInput(f"{field}.contents", f"expected InferTensorContents, got {error}") from None
    except TooManyFields:
        reason = (
            f"expected packed numbers, or the {count} strings of the shape, got more than {_MAX_PARTS} other fields"
        )
        raise InvalidInput(f"{field}.contents", reason) from None


def write_contents(contents: Message, tensor: OutputTensor) -> None:
    """Write a tensor into an empty InferTensorContents."""
    elements: Any = tensor.value.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        elements = [element.encode() for element in elements]
    getattr(contents, CONTENTS[tensor.datatype].field).extend(elements)


def contents_parts(tensor: OutputTensor) -> list[bytes | memoryview]:
    """Return the InferTensorContents of a long tensor in the wire format. Call it in a thread."""
    held = CONTENTS[tensor.datatype]
    if held.wire_type in (FIXED32, FIXED64):
        # A packed field has the bytes of the tensor.
        packed = encode_tensor(tensor.value, tensor.datatype)
        return [write_head(held.number, len(packed)), packed]
    flat = tensor.value.reshape(-1)
    parts: list[bytes | memoryview] = []
    for first in range(0, flat.size, _ELEMENTS_AT_ONCE):
        piece = _CONTENTS_MESSAGE()
        write_contents(piece, tensor._replace(value=flat[first : first + _ELEMENTS_AT_ONCE]))
        parts.append(piece.SerializeToString())
        pause()
    return parts


def _contents_of(datatype: str, field: str) -> Contents:
    contents = CONTENTS.get(datatype)
    if contents is None:
        numpy_dtype(datatype, field)  # raises for an unknown datatype
        raise InvalidInput(
            f"{field}.datatype", f"expected a datatype with typed contents, got {datatype}; send raw_input_contents"
        )
    return contents


def _wrong_count(
    datatype: str, shape: tuple[int, ...], found: str, other_fields: Iterable[str], field: str
) -> InvalidInput:
    held = CONTENTS[datatype].field
    others = sorted(other_fields)
    hint = f"; send {datatype} in {held}, not in {others[0]}" if others else ""
    reason = f"expected {prod(shape)} elements for shape {list(shape)}, got {found}{hint}"
    return InvalidInput(f"{field}.contents.{held}", reason)


def _read_strings(elements: Iterable[bytes], count: int, field: str, has_files: bool) -> Array:
    """Decode exactly `count` elements; files stay bytes."""
    strings = np.empty(count, NUMPY_DTYPES["string"])
    if has_files:
        strings[:] = list(elements)
        return strings
    for i, element in enumerate(elements):
        try:
            strings[i] = element.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{field}.contents.bytes_contents[{i}]", f"expected UTF-8, got {error.reason} at byte {error.start}"
            ) from None
    return strings


def _strings(serialized: bytes, spans: list[Span], shape: tuple[int, ...], field: str) -> Iterator[bytes]:
    """Yield bytes_contents. Raises InvalidInput unless there are as many as the shape has elements."""
    count, found = prod(shape), 0
    others: set[str] = set()
    for number, wire_type, _, value, end in _fields(serialized, spans, count + _MAX_PARTS):
        if number != _NUMBERS["bytes_contents"] or wire_type != BYTES:
            others.add(_NAMES.get(number, ""))
            continue
        found += 1
        if found > count:
            raise _wrong_count("BYTES", shape, "more", (), field)
        yield serialized[value:end]
        if not found % _STRINGS_AT_ONCE:
            pause()
    if found < count:
        raise _wrong_count("BYTES", shape, str(found), others - {""}, field)


def _read_numbers(serialized: bytes, spans: list[Span], datatype: str, shape: tuple[int, ...], field: str) -> Array:
    held = CONTENTS[datatype]
    view = memoryview(serialized)
    parts: list[memoryview] = []
    others: set[str] = set()
    for number, wire_type, _, value, end in _fields(serialized, spans, _MAX_PARTS):
        if number == held.number and wire_type in (BYTES, held.wire_type):
            parts.append(view[value:end])
        elif wire_type == BYTES or number in _NAMES:
            others.add(_NAMES.get(number, ""))
    is_varint = held.wire_type == VARINT
    found = sum(map(count_varints, parts)) if is_varint else _count_fixed(parts, held.dtype.itemsize)
    if found != prod(shape):
        raise _wrong_count(datatype, shape, str(found), others - {""}, field)
    if is_varint:
        return _decode_integers(parts, datatype, found, field)
    arrays = [np.frombuffer(part, held.dtype.newbyteorder("<")) for part in parts if part]
    if len(arrays) == 1:
        # Kernels need aligned arrays.
        return arrays[0] if arrays[0].flags.aligned else arrays[0].copy()
    return np.concatenate(arrays) if arrays else np.empty(0, held.dtype)


def _fields(serialized: bytes, spans: list[Span], max_fields: int) -> Iterator[WireField]:
    reader = FieldReader(serialized, max_fields)
    for start, end in spans:
        yield from reader.fields(start, end)


def _count_fixed(parts: list[memoryview], item_bytes: int) -> int:
    if any(len(part) % item_bytes for part in parts):
        raise WireError("packed numbers that end within a number")
    return sum(map(len, parts)) // item_bytes


def _decode_integers(parts: list[memoryview], datatype: str, count: int, field: str) -> Array:
    """Decode varints in steps, so that no step holds the interpreter's lock for long."""
    dtype = DTYPES[datatype]
    decoded = np.empty(count, NUMPY_DTYPES[dtype])
    at = 0
    for part in parts:
        for integers in decode_varints(part, _WINDOW_BYTES):
            decoded[at : at + len(integers)] = narrow(_as_field(integers, datatype), dtype, f"{field}.contents")
            at += len(integers)
            pause()
    return decoded


def _as_field(integers: Numbers, datatype: str) -> Numbers:
    """Convert varints as protobuf does: 32-bit fields keep the lower half, and any bit makes a bool true."""
    held = CONTENTS[datatype]
    if held is _INT:
        return integers.astype(np.uint32).view(np.int32).astype(np.int64)
    if held is _UINT:
        return integers.astype(np.uint32).astype(np.int64)
    return integers.astype(np.bool_) if datatype == "BOOL" else integers.view(held.dtype)
