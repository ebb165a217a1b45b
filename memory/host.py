"""Measure the memory of this machine and of its processes, and their CPU time."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_CGROUP_V2 = Path("/sys/fs/cgroup")
_SMAPS = Path("/proc/self/smaps_rollup")


def host_memory(cgroup: Path = _CGROUP_V2) -> tuple[int, int]:
    """Return the total and the available bytes of memory for this process.

    The limit of a container (cgroup v2: `memory.max`) applies if it is smaller than the machine. Its use
    (`memory.current`) is counted without the page cache that the kernel can reclaim (`inactive_file`).
    """
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        # No cgroup v2, or the limit `max`.
        return total, available
    reclaimable = int(statistics.get("inactive_file", 0))
    return min(total, limit), max(0, min(available, limit - used + reclaimable))


def resident_bytes() -> int:
    """Return the resident set size of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


class ProcessTotals(NamedTuple):
    """`cpu_s`: CPU time of all threads since the start. `shared_bytes`: of `resident_bytes`, pages of files and memory
    that other processes may map too; 0 where the system does not tell.
    """

    cpu_s: float
    resident_bytes: int
    shared_bytes: int


def process_totals(pid: int) -> ProcessTotals | None:
    """Return what a process has used; None for one that has ended."""
    try:
        process = psutil.Process(pid)
        times, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return None
    return ProcessTotals(times.user + times.system, int(memory.rss), int(getattr(memory, "shared", 0)))


def proportional_bytes(smaps: Path = _SMAPS) -> int:
    """Return the memory of this process in bytes; a page that several processes map counts in parts.

    The sum over processes is the memory that they take together. Without /proc: the resident set size.
    """
    try:
        return _proportional_bytes(smaps)
    except OSError:
        return resident_bytes()


def bytes_together(pids: Iterable[int]) -> int:
    """Return the memory that these processes take together, as `proportional_bytes`. An ended process has none."""
    total = 0
    for pid in pids:
        try:
            total += _proportional_bytes(_SMAPS.parents[1] / str(pid) / _SMAPS.name)
        except OSError:
            with suppress(psutil.Error):
                total += int(psutil.Process(pid).memory_info().rss)
    return total


def _proportional_bytes(smaps: Path) -> int:
    values = (line.split() for line in smaps.read_text().splitlines())
    return 1024 * sum(int(words[1]) for words in values if words[0] in ("Pss:", "SwapPss:"))


def mapped_bytes(path: Path) -> int:
    """Return the bytes of the files at or below `path` that this process has mapped into memory; 0 without /proc.

    Pages that were not read yet are counted too.
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
