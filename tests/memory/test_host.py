"""Memory of the machine, of a container and of this process."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from memory.host import bytes_together, host_memory, proportional_bytes, resident_bytes

MIB = 1024**2


def cgroup(folder: Path, limit: object, used: object, statistics: str = "anon 1\ninactive_file 0\n") -> Path:
    for name, content in {"memory.max": limit, "memory.current": used, "memory.stat": statistics}.items():
        (folder / name).write_text(f"{content}\n" if name != "memory.stat" else statistics)
    return folder


def test_host_memory_without_container_is_machine(tmp_path: Path) -> None:
    total, available = host_memory(tmp_path / "no such folder")
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total


def test_host_memory_of_this_machine() -> None:
    total, available = host_memory()
    assert 0 < available <= total <= psutil.virtual_memory().total


def test_host_memory_uses_smaller_container_limit(tmp_path: Path) -> None:
    assert host_memory(cgroup(tmp_path, 100 * MIB, 30 * MIB)) == (100 * MIB, 70 * MIB)


def test_host_memory_counts_reclaimable_cache_as_available(tmp_path: Path) -> None:
    folder = cgroup(tmp_path, 100 * MIB, 90 * MIB, f"anon 5\ninactive_file {50 * MIB}\nactive_file 7\n")
    assert host_memory(folder) == (100 * MIB, 60 * MIB)


def test_host_memory_is_never_negative(tmp_path: Path) -> None:
    assert host_memory(cgroup(tmp_path, 100 * MIB, 130 * MIB)) == (100 * MIB, 0)


def test_host_memory_ignores_limit_beyond_machine(tmp_path: Path) -> None:
    total, available = host_memory(cgroup(tmp_path, 2**60, 30 * MIB))
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total


@pytest.mark.parametrize(
    ("limit", "used", "statistics"),
    [("max", 5, "inactive_file 0\n"), (100, "", "inactive_file 0\n"), (100, 5, "what is this\n")],
)
def test_host_memory_ignores_unreadable_files(tmp_path: Path, limit: object, used: object, statistics: str) -> None:
    assert host_memory(cgroup(tmp_path, limit, used, statistics))[0] == psutil.virtual_memory().total


def written_pages() -> mmap.mmap:
    """Return 64 MiB that are new to the process: an allocator may hand out pages that are resident already."""
    pages = mmap.mmap(-1, 64 * MIB)
    pages.write(b"x" * len(pages))
    return pages


def test_resident_bytes_grow_with_written_pages() -> None:
    before = resident_bytes()
    held = written_pages()
    assert resident_bytes() - before > 32 * MIB
    held.close()


def test_proportional_bytes_grow_with_written_pages() -> None:
    before = proportional_bytes()
    held = written_pages()
    assert proportional_bytes() - before > 32 * MIB
    held.close()


def test_proportional_bytes_count_swapped_pages(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps_rollup"
    smaps.write_text("55e-7ff ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss: 300 kB\nSwap: 9 kB\nSwapPss: 4 kB\n")
    assert proportional_bytes(smaps) == 304 * 1024


def test_proportional_bytes_without_proc_are_resident(tmp_path: Path) -> None:
    assert proportional_bytes(tmp_path / "no such file") > MIB


def test_bytes_together_add_up_living_processes() -> None:
    code = f"held = b'x' * {64 * MIB}; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alone = bytes_together([os.getpid()])
        assert alone > 0
        assert bytes_together([os.getpid(), child.pid]) - alone > 32 * MIB
        child.communicate(b"\n")
    assert bytes_together([child.pid]) == 0
