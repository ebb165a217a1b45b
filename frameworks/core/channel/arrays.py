"""Write numpy arrays into messages, inline or as references into shared memory, and read them.

An array is a msgpack extension value. Its code names the dtype and the form; its data begins with the shape: the number
of dimensions in one byte, then each as uint64. Inline numbers follow in C order; the strings of a string array as a
msgpack list; a reference as block, offset and size in bytes, each uint64. All numbers are little-endian.
"""

from collections.abc import Callable, Mapping
from struct import Struct, error
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from frameworks.core.channel.messages import ProtocolError
from memory.buffers import Array

INLINE_BYTES = 16 * 1024
"""Numeric arrays up to this size travel in the message."""
MAX_DIMENSIONS = 64
"""The limit of numpy."""

Reference = tuple[int, int, int]
"""Block of an arena, offset in it, size; in bytes."""
Find = Callable[[int, int, int], Array]
"""Return the bytes of a reference as a uint8 array. Raises ProtocolError for a reference outside of the arena."""


class Placement(Protocol):
    """Places arrays in memory that the peer shares."""

    def place(self, array: Array) -> Reference | None:
        """Copy the array in C order; return its place, or None where the memory is full."""
        ...

    def take_back(self, block: int) -> None:
        """Free a block whose reference was not sent."""
        ...


_NUMERIC = (
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64,
)  # fmt: skip
_CODES = {np.dtype(each): code for code, each in enumerate(_NUMERIC, 1)}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_STRINGS = 32
_REFERENCE = 64  # added to the code of the dtype
_HEADS = [Struct(f"<B{count}Q") for count in range(MAX_DIMENSIONS + 1)]
_PLACE = Struct("<QQQ")
_texts = msgspec.msgpack.Decoder(list[str])


class ArrayWriter:
    """Turns arrays into extension values: the `enc_hook` of an encoder of messages."""

    def __init__(self, placement: Placement | None = None) -> None:
        """`placement`: None to send every array inline."""
        self._placement = placement
        self.placed: list[int] = []
        """Blocks of the message that is encoded. After it, call `sent` or `take_back` if there are any."""

    def write(self, value: object) -> object:
        """Return a value that msgpack has: of an array, a numpy scalar or a mapping. Raises TypeError for others."""
        if not isinstance(value, np.ndarray):
            return _plain(value)
        code = _CODES.get(value.dtype)
        shape = value.shape
        head = _HEADS[len(shape)].pack(len(shape), *shape)
        if code is None:
            return Ext(_STRINGS, head + _strings(value))
        if value.nbytes > INLINE_BYTES and self._placement is not None:
            reference = self._placement.place(value)
            if reference is not None:
                self.placed.append(reference[0])
                return Ext(_REFERENCE + code, head + _PLACE.pack(*reference))
        return Ext(code, head + value.tobytes())

    def sent(self) -> None:
        """Forget the placed arrays of a message that was encoded."""
        self.placed = []

    def take_back(self) -> None:
        """Free the placed arrays of a message that was not encoded."""
        placed, self.placed = self.placed, []
        for block in placed:
            assert self._placement is not None
            self._placement.take_back(block)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected a plain value, got {type(value).__name__}")


def _strings(array: Array) -> bytes:
    if array.dtype.kind not in "OU":
        raise TypeError(f"expected one of the dtypes {', '.join(map(str, _CODES))} or strings, got {array.dtype}")
    texts = array.ravel().tolist()
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"expected strings in an array of objects, got {type(text).__name__}")
    return msgspec.msgpack.encode(texts, enc_hook=str)


def array_reader(find: Find | None = None) -> Callable[[int, memoryview], Array]:
    """Return the `ext_hook` of a decoder of messages: it reads arrays, and raises ProtocolError for damaged ones.

    `find`: None where the peer places no arrays. Arrays of numbers are read-only.
    """

    def read(code: int, data: memoryview) -> Array:
        try:
            head = _HEADS[data[0]]
            shape, at = head.unpack_from(data)[1:], head.size
            if code in _DTYPES:
                array: Array = np.ndarray(shape, _DTYPES[code], data[at:].tobytes())
                if array.nbytes == len(data) - at:
                    return array
                raise ValueError(f"{len(data) - at} bytes for the shape {shape} of {array.dtype}")
            if code == _STRINGS:
                return _read_strings(shape, data[at:])
            if find is not None and code - _REFERENCE in _DTYPES:
                return _read_placed(shape, _DTYPES[code - _REFERENCE], data[at:], find)
        except (TypeError, ValueError, IndexError, OverflowError, error) as problem:
            raise ProtocolError(f"array: expected a shape and its data, got {problem}") from None
        raise ProtocolError(f"array: expected a known extension code, got {code}")

    return read


def _read_strings(shape: tuple[int, ...], data: memoryview) -> Array:
    texts = _texts.decode(data)
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape)


def _read_placed(shape: tuple[int, ...], dtype: np.dtype[Any], data: memoryview, find: Find) -> Array:
    block, offset, nbytes = _PLACE.unpack(data)
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size != nbytes or offset % dtype.itemsize:
        raise ValueError(f"{nbytes} bytes at {offset} for the shape {shape} of {dtype}")
    return find(block, offset, nbytes).view(dtype).reshape(shape)
