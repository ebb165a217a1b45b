"""What this process may use of the machine's memory."""

from pathlib import Path

import psutil
import pytest

from memory.host import host_memory, resident_bytes

MIB = 1024**2


def cgroup(folder: Path, limit: object, used: object, statistics: str = "anon 1\ninactive_file 0\n") -> Path:
    for name, content in {"memory.max": limit, "memory.current": used, "memory.stat": statistics}.items():
        (folder / name).write_text(f"{content}\n" if name != "memory.stat" else statistics)
    return folder


def test_without_a_container_the_machine_is_the_limit(tmp_path: Path) -> None:
    total, available = host_memory(tmp_path / "no such folder")
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total


def test_this_machine_has_memory() -> None:
    total, available = host_memory()
    assert 0 < available <= total <= psutil.virtual_memory().total


def test_a_container_s_limit_counts_where_it_is_smaller(tmp_path: Path) -> None:
    assert host_memory(cgroup(tmp_path, 100 * MIB, 30 * MIB)) == (100 * MIB, 70 * MIB)


def test_page_cache_that_the_kernel_gives_back_is_available(tmp_path: Path) -> None:
    folder = cgroup(tmp_path, 100 * MIB, 90 * MIB, f"anon 5\ninactive_file {50 * MIB}\nactive_file 7\n")
    assert host_memory(folder) == (100 * MIB, 60 * MIB)


def test_more_in_use_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    assert host_memory(cgroup(tmp_path, 100 * MIB, 130 * MIB)) == (100 * MIB, 0)


def test_a_limit_beyond_the_machine_is_none(tmp_path: Path) -> None:
    total, available = host_memory(cgroup(tmp_path, 2**60, 30 * MIB))
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total


@pytest.mark.parametrize(
    ("limit", "used", "statistics"),
    [("max", 5, "inactive_file 0\n"), (100, "", "inactive_file 0\n"), (100, 5, "what is this\n")],
)
def test_files_that_say_nothing_leave_the_machine_as_the_limit(
    tmp_path: Path, limit: object, used: object, statistics: str
) -> None:
    assert host_memory(cgroup(tmp_path, limit, used, statistics))[0] == psutil.virtual_memory().total


def test_the_resident_set_grows_with_what_is_touched() -> None:
    before = resident_bytes()
    held = bytearray(b"x" * (64 * MIB))
    assert resident_bytes() - before > 32 * MIB
    del held
