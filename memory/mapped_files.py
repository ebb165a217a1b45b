"""Give back the memory of a part of a mapped file that is not read again, while the rest stays mapped."""

import ctypes
import mmap
import sys
from functools import cache
from pathlib import Path
from typing import Any

_MAPS = Path("/proc/self/maps")
_FIXED = 0x10  # MAP_FIXED of Linux, which Python does not name
_NO_RESERVE = 0x4000


class MappedFiles:
    """The mappings of files of this process, as they were when it was made. Without Linux there are none."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        if sys.platform != "linux":
            return
        for line in _MAPS.read_bytes().splitlines():
            fields = line.split(maxsplit=5)
            # The inode of memory without a file is 0.
            if len(fields) == 6 and fields[4] != b"0":
                start, _, end = fields[0].partition(b"-")
                self._ranges.append((int(start, 16), int(end, 16)))

    def give_back(self, address: int, nbytes: int) -> int:
        """Replace the whole pages of this memory by empty ones, if a file is mapped there; return their bytes.

        The address range stays reserved for the owner of the mapping, who may unmap it as a whole. A later
        read finds zeros.
        """
        if not any(start <= address and address + nbytes <= end for start, end in self._ranges):
            return 0
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if size <= 0:
            return 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED | _NO_RESERVE
        found = _mmap()(first, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        return size if found == first else 0


@cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    return function
