import struct
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from frameworks.core.channel.arrays import INLINE_BYTES, ArrayWriter, Reference, array_reader
from frameworks.core.channel.messages import ProtocolError
from frameworks.types import Array
from tests.support import wire_strategies
from tests.support.wire_values import is_same


class _Memory:
    """Memory that two sides share: blocks by number."""

    def __init__(self, max_blocks: int = 100) -> None:
        self.max_blocks = max_blocks
        self.blocks: dict[int, Array] = {}

    def place(self, array: Array) -> Reference | None:
        if len(self.blocks) == self.max_blocks:
            return None
        number = len(self.blocks)
        self.blocks[number] = np.frombuffer(array.tobytes(), np.uint8)
        return number, 0, array.nbytes

    def take_back(self, block: int) -> None:
        del self.blocks[block]

    def find(self, block: int, offset: int, nbytes: int) -> Array:
        if block not in self.blocks or not 0 <= offset <= offset + nbytes <= self.blocks[block].nbytes:
            raise ProtocolError(f"block: expected a part of a block, got {block}")
        return self.blocks[block][offset : offset + nbytes]


def _sent(value: object, memory: _Memory | None = None) -> Any:
    data = msgspec.msgpack.encode(value, enc_hook=ArrayWriter(memory).write)
    return msgspec.msgpack.decode(data, ext_hook=array_reader(memory.find if memory else None))


@given(wire_strategies.arrays())
def test_array_sent_inline_returns_equal(array: Array) -> None:
    assert is_same(_sent(array), array)


@given(wire_strategies.arrays(), st.integers(1, 3))
def test_large_array_sent_by_reference_returns_equal(array: Array, times: int) -> None:
    memory = _Memory()
    count = times * INLINE_BYTES
    large = np.resize(array, (count, *array.shape)) if array.size else array
    assert is_same(_sent(large, memory), large)
    is_placed = large.dtype != object and large.nbytes > INLINE_BYTES
    assert len(memory.blocks) == is_placed


def test_array_at_inline_bound_is_sent_inline() -> None:
    memory = _Memory()
    array = np.arange(INLINE_BYTES, dtype=np.uint8)
    assert is_same(_sent(array, memory), array)
    assert not memory.blocks
    assert is_same(_sent(np.append(array, array[:1]), memory), np.append(array, array[:1]))
    assert len(memory.blocks) == 1


def test_large_array_without_room_is_sent_inline() -> None:
    memory = _Memory(max_blocks=1)
    arrays = [np.full(INLINE_BYTES, number, np.float64) for number in range(2)]
    assert is_same(_sent(arrays, memory), arrays)
    assert len(memory.blocks) == 1


def test_array_read_from_memory_is_no_copy() -> None:
    memory = _Memory()
    got = _sent(np.zeros(INLINE_BYTES), memory)
    assert np.shares_memory(got, memory.blocks[0])


def test_array_sent_inline_is_aligned_and_read_only() -> None:
    got = _sent([b"x", np.arange(3.0)])[1]
    assert got.flags.aligned
    assert not got.flags.writeable


def test_block_of_unsent_message_is_taken_back() -> None:
    memory = _Memory()
    writer = ArrayWriter(memory)
    with pytest.raises(TypeError):
        msgspec.msgpack.encode([np.zeros(INLINE_BYTES), object()], enc_hook=writer.write)
    assert memory.blocks
    writer.take_back()
    assert not memory.blocks


def test_block_of_sent_message_is_kept() -> None:
    memory = _Memory()
    writer = ArrayWriter(memory)
    msgspec.msgpack.encode(np.zeros(INLINE_BYTES), enc_hook=writer.write)
    writer.sent()
    writer.take_back()
    assert memory.blocks


@pytest.mark.parametrize(
    "array", [np.array([1 + 2j]), np.array(["2026"], "M8[Y]"), np.array([b"raw"]), np.array([1, "a"], object)]
)
def test_array_of_other_dtype_raises_type_error(array: Array) -> None:
    with pytest.raises(TypeError, match="expected"):
        _sent(array)


def test_unicode_array_sent_returns_strings() -> None:
    assert is_same(_sent(np.array([["a", "b\u00e9"]])), np.array([["a", "b\u00e9"]], dtype=object))


def test_numpy_scalars_and_mappings_become_plain() -> None:
    assert _sent([np.float32(0.5), np.int64(3), np.bool_(True)]) == [0.5, 3, True]
    assert _sent(MappingProxyType({"a": np.float64(2.0)})) == {"a": 2.0}


def _inline(shape: tuple[int, ...], data: bytes) -> bytes:
    return struct.pack(f"<B{len(shape)}Q", len(shape), *shape) + data


@pytest.mark.parametrize(
    ("code", "data"),
    [
        pytest.param(11, b"", id="no header"),
        pytest.param(11, b"\xff", id="too many dimensions"),
        pytest.param(11, b"\x02" + bytes(8), id="cut header"),
        pytest.param(11, _inline((2,), bytes(7)), id="too few bytes"),
        pytest.param(11, _inline((1,), bytes(90)), id="too many bytes"),
        pytest.param(11, _inline((2**64 - 1,), bytes(8)), id="a length that numpy would infer"),
        pytest.param(11, _inline((2**64 - 1, 2**64 - 1), bytes(8)), id="two such lengths"),
        pytest.param(11, _inline((2**62, 2**62), bytes(8)), id="huge"),
        pytest.param(32, _inline((2,), msgspec.msgpack.encode(["a"])), id="too few strings"),
        pytest.param(32, _inline((2**64 - 1,), msgspec.msgpack.encode(["a"])), id="too many strings"),
        pytest.param(32, _inline((1,), msgspec.msgpack.encode([b"a"])), id="other than strings"),
        pytest.param(32, _inline((1,), b"\xdd\xff\xff\xff\xff"), id="a list that lies"),
        pytest.param(75, _inline((1,), struct.pack("<QQQ", 9, 0, 4)), id="unknown block"),
        pytest.param(75, _inline((1,), struct.pack("<QQQ", 0, 0, 64)), id="size of other shape"),
        pytest.param(75, _inline((1,), struct.pack("<QQQ", 0, 2, 4)), id="not aligned"),
        pytest.param(75, _inline((1,), struct.pack("<QQQ", 0, 1 << 40, 4)), id="outside"),
        pytest.param(75, _inline((2**62, 2**62), struct.pack("<QQQ", 0, 0, 0)), id="huge reference"),
        pytest.param(75, _inline((2**61,), struct.pack("<QQQ", 0, 0, 2**63)), id="huge size"),
        pytest.param(75, _inline((1,), b"\0"), id="cut reference"),
        pytest.param(96, _inline((1,), bytes(24)), id="unknown code"),
        pytest.param(-7, _inline((1,), bytes(24)), id="negative code"),
    ],
)
def test_damaged_array_raises_protocol_error(code: int, data: bytes) -> None:
    memory = _Memory()
    memory.place(np.zeros(4))
    with pytest.raises(ProtocolError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Ext(code, data)), ext_hook=array_reader(memory.find))


def test_reference_without_shared_memory_raises_protocol_error() -> None:
    data = msgspec.msgpack.encode(Ext(75, _inline((1,), bytes(24))))
    with pytest.raises(ProtocolError):
        msgspec.msgpack.decode(data, ext_hook=array_reader())


@given(st.integers(-127, 127).filter(lambda code: code != -1), st.binary(max_size=64))
def test_random_extension_raises_only_protocol_error(code: int, data: bytes) -> None:
    memory = _Memory()
    memory.place(np.zeros(4))
    try:
        got = msgspec.msgpack.decode(msgspec.msgpack.encode(Ext(code, data)), ext_hook=array_reader(memory.find))
    except ProtocolError:
        return
    assert isinstance(got, np.ndarray)
