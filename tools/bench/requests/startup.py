"""Measure the start time and the memory of a server with one small ONNX model."""

import time
from pathlib import Path
from statistics import median

import psutil

from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 5
_MIB = 1024 * 1024


def measure_startup(model: Path) -> list[Row]:
    """Raises if the server imported torch or transformers."""
    ready_s, resident_mb = [], []
    for _ in range(_ROUNDS):
        with roundhouse([str(model)], cores=None) as server:
            ready_s.append(time.perf_counter() - server.started_s)
            process = psutil.Process(server.process.pid)
            resident_mb.append(process.memory_info().rss / 1e6)
            mapped = [part.path for part in process.memory_maps()]
            if any("/torch/" in path or "/transformers/" in path for path in mapped):
                raise RuntimeError("a server of ONNX models has torch in memory")
    return [
        Row("ONNX only: process start to ready", f"{median(ready_s):.2f} s", "≤ 2 s"),
        Row("ONNX only: resident memory when ready", f"{median(resident_mb):.0f} MB", "≤ 150 MB"),
    ]
