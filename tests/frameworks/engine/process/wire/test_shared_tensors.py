"""Tensors of a body that was received into shared memory are not copied; all others are."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from frameworks.engine.process.wire.messages import Free
from frameworks.engine.process.wire.shared_tensors import SharedTensors, body_under
from frameworks.types import Array
from memory.buffers import ALIGNMENT_BYTES
from memory.shared_arena import SharedArena
from tests.support.loops import in_loop

MIB = 1024**2
LEAD_BYTES = 3 * ALIGNMENT_BYTES


@pytest.fixture
def arenas() -> Iterator[tuple[SharedArena, SharedArena]]:
    pair = SharedArena.create(8 * MIB), SharedArena.create(8 * MIB)
    yield pair
    for each in pair:
        each.close()


def tensors_of(arenas: tuple[SharedArena, SharedArena]) -> SharedTensors:
    return SharedTensors(*arenas, send=lambda free: None)


def body_of(tensors: SharedTensors, nbytes: int) -> Array:
    body = tensors.lease_body(nbytes)
    assert body is not None
    return body


def tensor_on(body: Array, offset: int, count: int) -> Array:
    """Return float32 [1, count], as the decoder reads it: a view of a memoryview."""
    return np.frombuffer(body.data[offset : offset + 4 * count], np.float32).reshape(1, count)


@in_loop
async def test_tensor_of_body_is_not_copied(arenas: tuple[SharedArena, SharedArena]) -> None:
    tensors = tensors_of(arenas)
    body = body_of(tensors, MIB)
    placed = tensors.place(tensor_on(body, LEAD_BYTES, 1000))
    assert placed is not None
    block, offset, nbytes = placed
    assert (offset, nbytes) == (LEAD_BYTES, 4000)
    body[LEAD_BYTES : LEAD_BYTES + 4] = np.frombuffer(np.float32(7.5).tobytes(), np.uint8)
    read = arenas[0].read(block, offset, nbytes, lambda number: None)
    assert read.view(np.float32)[0] == 7.5
    assert arenas[0].stats().leased_bytes == MIB


@in_loop
async def test_body_is_free_after_request_and_process(arenas: tuple[SharedArena, SharedArena]) -> None:
    tensors = tensors_of(arenas)
    body = body_of(tensors, MIB)
    placed = [tensors.place(tensor_on(body, offset, 64)) for offset in (0, 4096, 4096)]
    assert tensors.num_in_use == 3
    tensors.freed(Free([each[0] for each in placed if each is not None]))
    assert tensors.num_in_use == 0
    assert arenas[0].stats().leased_bytes == MIB
    del body
    gc.collect()
    arenas[0].check_integrity()


@in_loop
async def test_tensor_outlives_its_request(arenas: tuple[SharedArena, SharedArena]) -> None:
    """The caller has gone, and the process still reads."""
    tensors = tensors_of(arenas)
    placed = tensors.place(tensor_on(body_of(tensors, MIB), 0, 64))
    assert placed is not None
    gc.collect()
    assert arenas[0].stats().leased_bytes == MIB
    tensors.freed(Free([placed[0]]))
    arenas[0].check_integrity()


@in_loop
async def test_other_arrays_are_copied(arenas: tuple[SharedArena, SharedArena]) -> None:
    tensors = tensors_of(arenas)
    body = body_of(tensors, MIB)
    body[:] = np.arange(MIB) % 251
    others = SharedArena.create(8 * MIB), SharedArena.create(8 * MIB)
    copied = [
        tensor_on(body, 4, 1000),  # not aligned
        np.frombuffer(body.data[:8000], np.float32).reshape(2, 1000)[:, ::2],  # not contiguous
        tensor_on(body_of(tensors_of(others), MIB), 0, 1000),  # of a process that has ended
        np.ones((1, 1000), np.float32),
    ]
    for array in copied:
        placed = tensors.place(array)
        assert placed is not None
        block, offset, nbytes = placed
        assert offset >= MIB
        read = arenas[0].read(block, offset, nbytes, lambda number: None)
        assert read.tobytes() == array.tobytes()
    for each in others:
        each.close()


@in_loop
async def test_bodies_leave_room_for_tensors(arenas: tuple[SharedArena, SharedArena]) -> None:
    tensors = tensors_of(arenas)
    bodies = [body_of(tensors, 2 * MIB) for _ in range(2)]
    assert tensors.lease_body(64) is None
    assert tensors.place(np.ones(MIB, np.float32)) is not None
    del bodies
    gc.collect()
    tensors.close()
    assert tensors.lease_body(64) is None


@pytest.mark.parametrize("base", [b"bytes", bytearray(8), np.zeros(8, np.uint8)], ids=["bytes", "bytearray", "array"])
def test_array_on_other_memory_has_no_body(base: bytes | bytearray | Array) -> None:
    assert body_under(np.frombuffer(base, np.uint8)) is None
    assert body_under(np.zeros(3)) is None
