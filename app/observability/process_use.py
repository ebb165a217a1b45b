"""Measure the CPU time and the memory of the server: of the processes with its own code, and of those of models."""

import os
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from frameworks.engine.process.client import process_registry
from memory.host import ProcessTotals, process_totals


class Use(NamedTuple):
    """`cores`: mean number of busy cores since the last reading. `memory_bytes`: resident set size."""

    cores: float
    memory_bytes: int


class ServerUse(NamedTuple):
    """`server`: of the process of the models, and of workers. `engines`: of processes of models; None without one."""

    server: Use = Use(0.0, 0)
    engines: Use | None = None


class ProcessMeter:
    """Keeps the CPU times of the last reading. Any thread may read."""

    def __init__(
        self,
        workers: Callable[[], Iterable[int]] = tuple,
        engines: Callable[[], Iterable[int]] = process_registry.process_ids,
        measure: Callable[[int], ProcessTotals | None] = process_totals,
    ) -> None:
        """`workers`, `engines`: return process ids; they must be safe in any thread."""
        self._workers = workers
        self._engines = engines
        self._measure = measure
        self._cpu_s: dict[int, float] = {}
        self._lock = threading.Lock()
        self.read(1.0)  # what was used before the first reading is no part of it

    def read(self, span_s: float) -> ServerUse:
        """Return the use since the last reading. `span_s`: seconds since then. Blocks for about 0.1 ms per process."""
        with self._lock:
            before, self._cpu_s = self._cpu_s, {}
            # Pages that workers map too are counted once.
            own = [(os.getpid(), False), *((pid, True) for pid in self._workers())]
            engines = [(pid, False) for pid in self._engines()]
            return ServerUse(self._sum(own, before, span_s), self._sum(engines, before, span_s) if engines else None)

    def _sum(self, processes: Iterable[tuple[int, bool]], before: dict[int, float], span_s: float) -> Use:
        """Add up processes: their ids, and whether their shared pages are left out. Ended ones have no use."""
        seconds, memory_bytes = 0.0, 0
        for pid, is_sharing in processes:
            found = self._measure(pid)
            if found is None:
                continue
            earlier_s = before.get(pid, 0.0)
            # Less than before: another process has this id now.
            seconds += found.cpu_s - earlier_s if found.cpu_s >= earlier_s else found.cpu_s
            memory_bytes += found.resident_bytes - (found.shared_bytes if is_sharing else 0)
            self._cpu_s[pid] = found.cpu_s
        return Use(seconds / span_s, memory_bytes)
