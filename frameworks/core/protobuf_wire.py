"""Read and write the wire format of protobuf, for messages whose fields must not all become objects.

protobuf makes an object of every submessage, and holds the interpreter's lock until the whole message is read. Empty
submessages take 46 times their bytes. Here the fields of a message are found one by one, and counted. Source:
protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from mmap import mmap
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The wire types. Groups, 3 and 4, are refused: proto3 has none."""
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10
_COUNTED_BYTES = 1024 * 1024


class WireError(ValueError):
    """The bytes are no message."""


class TooManyFields(Exception):
    """The message has more fields than the reader accepts."""


WireField = tuple[int, int, int, int, int]
"""Number and wire type of a field, where its tag begins, where its value begins, and where both end.

A plain tuple: a million strings are a million fields.
"""


class FieldReader:
    """Find the fields of a message and of its submessages, at most `max_fields` of them in all."""

    def __init__(self, serialized: bytes | mmap, max_fields: int) -> None:
        self._serialized = serialized
        self._max_fields = max_fields
        self.num_fields = 0

    def fields(self, at: int, end: int) -> Iterator[WireField]:
        """Yield the fields of the message in these bytes. Raises WireError, TooManyFields."""
        serialized = self._serialized
        while at < end:
            self.num_fields += 1
            if self.num_fields > self._max_fields:
                raise TooManyFields
            start = at
            # Numbers below 128 are read here: a call for each would double the time.
            tag = serialized[at]
            at += 1
            if tag >= 0x80:
                tag, at = read_varint(serialized, start, end)
            wire_type = tag & 7
            if wire_type == BYTES:
                if at < end and serialized[at] < 0x80:
                    size = serialized[at]
                    at += 1
                else:
                    size, at = read_varint(serialized, at, end)
                value, at = at, at + size
            elif wire_type == VARINT:
                value = at
                _, at = read_varint(serialized, at, end)
            elif wire_type in _FIXED_SIZES:
                value, at = at, at + _FIXED_SIZES[wire_type]
            else:
                raise WireError(f"wire type {wire_type} at byte {start}")
            if at > end:
                raise WireError(f"the message ends within the field at byte {start}")
            yield tag >> 3, wire_type, start, value, at


def read_varint(serialized: bytes | mmap, at: int, end: int) -> tuple[int, int]:
    """Return the number at `at`, and where it ends. Raises WireError."""
    number = shift = 0
    for position in range(at, min(at + _MAX_VARINT_BYTES, end)):
        byte = serialized[position]
        if byte < 0x80:
            return number | byte << shift, position + 1
        number |= (byte & 0x7F) << shift
        shift += 7
    raise WireError(f"no number at byte {at}")


def write_varint(number: int) -> bytes:
    """Return the bytes of a number of 0 or more."""
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def write_field(number: int, value: bytes | bytearray | memoryview) -> bytes:
    """Return a field of wire type BYTES: a string, a submessage or packed numbers."""
    return b"".join((write_head(number, len(value)), value))


def write_head(number: int, size: int) -> bytes:
    """Return the first bytes of such a field, of which `size` more follow."""
    return write_varint(number << 3 | BYTES) + write_varint(size)


def count_varints(packed: memoryview) -> int:
    """Return how many numbers are packed. Raises WireError if the last one has no end."""
    values = np.frombuffer(packed, np.uint8)
    if len(values) and values[-1] >= 0x80:
        raise WireError("the packed numbers end within a number")
    windows = range(0, len(values), _COUNTED_BYTES)
    return sum(int(np.count_nonzero(values[at : at + _COUNTED_BYTES] < 0x80)) for at in windows)


def decode_varints(packed: memoryview, max_bytes: int) -> Iterator[Numbers]:
    """Yield the packed numbers as uint64, from at most `max_bytes` bytes at a time. Raises WireError."""
    values = np.frombuffer(packed, np.uint8)
    at = 0
    while at < len(values):
        window = values[at : at + max_bytes]
        ends = np.flatnonzero(window < 0x80)
        if not len(ends):
            raise WireError(f"a packed number has more than {_MAX_VARINT_BYTES} bytes, or no end")
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        yield _decode_window(window, starts, ends - starts + 1)
        at += int(ends[-1]) + 1


def _decode_window(window: Numbers, starts: Numbers, lengths: Numbers) -> Numbers:
    varints = (window[starts] & 0x7F).astype(np.uint64)
    longest = int(lengths.max())
    if longest > _MAX_VARINT_BYTES:
        raise WireError(f"a packed number has more than {_MAX_VARINT_BYTES} bytes")
    for i in range(1, longest):
        longer = np.flatnonzero(lengths > i)
        varints[longer] |= (window[starts[longer] + i] & 0x7F).astype(np.uint64) << np.uint64(7 * i)
    return varints
