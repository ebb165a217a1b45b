"""Count the CPUs of this process, and parse lists of CPUs like "0,2-3"."""

import os
import re
from pathlib import Path

_ITEM = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
_MAX_CHARACTERS = 256


def usable_cpus(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the CPUs that this process may use: its affinity mask, limited by a CPU quota (cgroup v2)."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = getattr(os, "process_cpu_count", os.cpu_count)() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such file (not Linux), or "max": no quota
        return count


def parse_cpus(text: str) -> frozenset[int]:
    """Return the numbers of a list of CPUs: numbers and ranges, both ends included. Raises ValueError."""
    cpus: set[int] = set()
    for item in text.split(",") if len(text) <= _MAX_CHARACTERS else [""]:
        match = _ITEM.fullmatch(item)
        first = int(match[1]) if match else 1
        last = int(match[2] or first) if match else 0
        if last < first:
            raise ValueError('expected numbers of CPUs and ranges, like "4-7" or "0,2-3"')
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(cpus: frozenset[int]) -> str:
    """Return the list of CPUs that `parse_cpus` reads, with the longest ranges."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
