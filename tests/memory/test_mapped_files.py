"""Parts of mapped files that are given back: their neighbours stay, and other memory is never touched."""

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from memory.host import mapped_bytes
from memory.mapped_files import MappedFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the mappings of files")
PAGE = mmap.PAGESIZE


def test_only_whole_pages_inside_are_given_back(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    content = np.arange(6 * PAGE, dtype=np.uint32).astype(np.uint8)
    file.write_bytes(content.tobytes())
    with file.open("rb") as opened:
        mapping = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    array = np.frombuffer(mapping, np.uint8)
    before = mapped_bytes(file)
    files = MappedFiles()
    # From the middle of the first page to the middle of the fourth.
    assert files.give_back(array.ctypes.data + PAGE // 2, 3 * PAGE) == 2 * PAGE
    assert before - mapped_bytes(file) == 2 * PAGE
    assert np.array_equal(array[:PAGE], content[:PAGE])
    assert np.array_equal(array[3 * PAGE :], content[3 * PAGE :])
    assert not array[PAGE : 3 * PAGE].any()
    assert files.give_back(array.ctypes.data + 5 * PAGE + 1, PAGE - 1) == 0
    del array
    mapping.close()
    assert mapped_bytes(file) == 0


def test_memory_without_a_file_stays() -> None:
    buffer = ctypes.create_string_buffer(b"\x07" * (4 * PAGE))
    assert MappedFiles().give_back(ctypes.addressof(buffer), 4 * PAGE) == 0
    assert buffer.raw.count(b"\x07") == 4 * PAGE
