"""Memory in large pages: its size, its alignment, and what of it is resident."""

import mmap
import os
import sys
from pathlib import Path

import pytest
import torch

from frameworks.pytorch import large_pages
from frameworks.pytorch.large_pages import empty_bytes, zeros

SIZES = [1, 2**22 - 1, 2**22, 5 * 2**20 + 3]


@pytest.mark.parametrize("size", SIZES)
def test_memory_of_any_size_is_aligned_and_writable(size: int) -> None:
    memory = empty_bytes(size)
    assert (memory.nbytes, memory.ctypes.data % 64) == (size, 0)
    memory[:] = 7
    assert memory[[0, -1]].tolist() == [7, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, 3000])
def test_tensor_is_zero_and_writable(rows: int, dtype: torch.dtype) -> None:
    found = zeros((rows, 2, 500), dtype)
    assert (found.shape, found.dtype) == ((rows, 2, 500), dtype)
    assert not found.any()
    found[-1, -1, -1] = 2
    assert int(found.count_nonzero()) == 1


def test_system_without_memory_is_error_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", fail)
    assert not zeros((2**21,), torch.float32).any()
    assert empty_bytes(2**23).nbytes == 2**23
    with pytest.raises(RuntimeError, match="memory"):
        zeros((2**50,), torch.float32)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")
def test_only_whole_large_pages_are_used() -> None:
    assert [large_pages.has_large_pages(size) for size in SIZES] == [False, False, True, True]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident")
def test_resident_memory_is_what_was_written() -> None:
    size = 5 * 2**20 + 3
    before = resident_bytes()
    kept = [empty_bytes(size) for _ in range(20)]
    for number in range(20):
        kept[number][:] = 1
    assert abs(resident_bytes() - before - 20 * size) < 2**22
    kept.clear()
    assert abs(resident_bytes() - before) < 2**22


def resident_bytes() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
