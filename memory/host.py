"""How much memory this machine, and this process, has: what placement and the metrics are counted from."""

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
