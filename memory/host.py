"""How much memory this machine, and this process, has: what placement and the metrics are counted from."""

import os
from pathlib import Path

import psutil

_CGROUP_V2 = Path("/sys/fs/cgroup")


def host_memory(cgroup: Path = _CGROUP_V2) -> tuple[int, int]:
    """Total and available memory in bytes, as this process may use it.

    A container's limit (cgroup v2: `memory.max`, `memory.current`, less the page cache that the kernel would give
    back, `inactive_file`) counts where it is smaller than the machine.
    """
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        # No cgroup v2, or `max`: the machine is the only limit.
        return total, available
    reclaimable = int(statistics.get("inactive_file", 0))
    return min(total, limit), max(0, min(available, limit - used + reclaimable))


def resident_bytes() -> int:
    """The resident set of this process, in bytes."""
    return int(psutil.Process().memory_info().rss)


def mapped_bytes(path: Path) -> int:
    """Bytes of the files at or below `path` that this process has mapped into its memory; 0 where /proc is not there.

    Whether their pages have been touched so far is not asked: they may all be.
    """
    files = [path] if path.is_file() else path.rglob("*")
    # The kernel names a file by its real path.
    names = {os.fsencode(os.path.realpath(file)) for file in files if file.is_file()}
    total = 0
    try:
        lines = Path("/proc/self/maps").read_bytes().splitlines()
    except OSError:
        return 0
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] in names:
            start, _, end = fields[0].partition(b"-")
            total += int(end, 16) - int(start, 16)
    return total
