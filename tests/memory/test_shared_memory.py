"""Memory without a name: size, seals, descriptors and pages."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.buffers import Array
from memory.shared_memory import CHUNK_BYTES, SharedMemory, SharedMemoryError

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and MADV_REMOVE")
SIZE = 8 * CHUNK_BYTES


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory.create(SIZE)
    yield memory
    memory.close()


def content(memory: SharedMemory) -> Array:
    assert memory.array is not None
    return memory.array


def used(memory: SharedMemory, start: int, end: int) -> None:
    """Write ones, as the user of a block does."""
    memory.mark_used(start, end)
    content(memory)[start:end] = 1


def mappings(inode: int) -> int:
    """Count the mappings of a file in this process."""
    return sum(line.split()[4] == str(inode) for line in Path("/proc/self/maps").read_text().splitlines())


class TestDescriptor:
    def test_create_rounds_size_up_to_page(self) -> None:
        memory = SharedMemory.create(1)
        assert len(content(memory)) == memory.max_bytes == os.fstat(memory.fd).st_size
        assert memory.max_bytes % os.sysconf("SC_PAGE_SIZE") == 0
        memory.close()

    def test_memory_has_no_name(self, memory: SharedMemory) -> None:
        assert os.fstat(memory.fd).st_nlink == 0

    def test_fallback_memory_has_no_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        memory = SharedMemory.create(SIZE)
        used(memory, 0, SIZE)
        memory.give_back([(0, SIZE)], SIZE)
        assert content(memory).all()
        assert os.fstat(memory.fd).st_nlink == 0
        assert not os.get_inheritable(memory.fd)
        memory.close()

    def test_child_does_not_inherit_descriptor(self, memory: SharedMemory) -> None:
        assert not os.get_inheritable(memory.fd)
        os.set_inheritable(copy := os.dup(memory.fd), True)
        other = SharedMemory.attach(copy, SIZE)
        assert not os.get_inheritable(copy)
        other.close()

    def test_attached_memory_has_same_content(self, memory: SharedMemory) -> None:
        other = SharedMemory.attach(os.dup(memory.fd), SIZE)
        content(memory)[SIZE - 1] = 7
        assert content(other)[SIZE - 1] == 7
        other.close()

    def test_attach_of_smaller_memory_raises(self, memory: SharedMemory) -> None:
        copy = os.dup(memory.fd)
        with pytest.raises(SharedMemoryError, match=f"expected memory of {2 * SIZE} bytes, got {SIZE}"):
            SharedMemory.attach(copy, 2 * SIZE)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)

    @LINUX
    @pytest.mark.parametrize("size", [0, 2 * SIZE])
    def test_size_cannot_change(self, memory: SharedMemory, size: int) -> None:
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)


@LINUX
class TestPages:
    def test_unwritten_memory_takes_no_pages(self) -> None:
        memory = SharedMemory.create(2**40)
        assert memory.resident_bytes() == 0
        memory.close()

    def test_given_back_pages_are_highest(self, memory: SharedMemory) -> None:
        used(memory, 0, SIZE)
        memory.give_back([(0, SIZE)], 3 * CHUNK_BYTES)
        assert memory.resident_bytes() == 5 * CHUNK_BYTES
        assert content(memory)[: 5 * CHUNK_BYTES].all()
        assert not content(memory)[5 * CHUNK_BYTES :].any()

    def test_pages_beside_range_are_kept(self, memory: SharedMemory) -> None:
        used(memory, 0, SIZE)
        memory.give_back([(CHUNK_BYTES - 64, 2 * CHUNK_BYTES), (64, 128)], SIZE)
        assert content(memory).sum() == SIZE - CHUNK_BYTES
        assert not content(memory)[CHUNK_BYTES : 2 * CHUNK_BYTES].any()

    def test_unused_chunks_do_not_count(self, memory: SharedMemory) -> None:
        used(memory, 0, 2 * CHUNK_BYTES)
        memory.give_back([(4 * CHUNK_BYTES, 4 * CHUNK_BYTES), (0, 2 * CHUNK_BYTES)], CHUNK_BYTES)
        assert memory.resident_bytes() == CHUNK_BYTES

    def test_chunk_is_used_again(self, memory: SharedMemory) -> None:
        for _ in range(2):
            used(memory, CHUNK_BYTES - 1, CHUNK_BYTES + 1)
            memory.give_back([(0, SIZE)], SIZE)
            assert memory.resident_bytes() == 0


class TestClose:
    def test_second_close_does_nothing(self, memory: SharedMemory) -> None:
        memory.close()
        descriptor = os.open(os.devnull, os.O_RDONLY)
        memory.close()
        os.close(descriptor)

    def test_closed_memory_has_no_pages(self, memory: SharedMemory) -> None:
        used(memory, 0, SIZE)
        memory.close()
        memory.give_back([(0, SIZE)], SIZE)
        assert memory.resident_bytes() == 0

    @LINUX
    def test_mapping_ends_with_last_view(self, memory: SharedMemory) -> None:
        inode = os.fstat(memory.fd).st_ino
        used(memory, 0, SIZE)
        view = content(memory)[64:128].reshape(8, 8)
        memory.close()
        assert view.all()
        assert mappings(inode) == 1
        del view
        assert mappings(inode) == 0
