"""Measure 16 callers beside 20,000 idle connections and 2,000 that send a head byte by byte."""

import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson

from tools.bench.shared import wrk
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.rounds import ratio
from tools.bench.shared.servers import ROOT, RunningServer, roundhouse
from tools.bench.shared.table import Row

_IDLE, _TRICKLING, _CALLERS = 20_000, 2_000, 16
_SPARE = 1800
"""File descriptors of the server for everything but the crowd."""
_ROUNDS = 3
_SECONDS = 4
_GONE_S = 120.0
_CONFIG = """
[server]
max_connections = {connections}
[[models.onnx_models]]
name = "vector"
path = {path}
"""


@dataclass(slots=True)
class _Crowd:
    """The connections beside the callers. `counts` are complete behind the block of `_crowd`."""

    idle: int
    counts: Counter[str]


def measure_connections(folder: Path, vector: Path) -> list[Row]:
    """Return the latency of the callers beside the crowd, and the memory of a connection.

    The limit on open files may permit fewer idle connections; the row has their number.
    """
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("latency beside idle connections", "-", compared=wrk.MISSING)]
    config = folder / "connections.toml"
    idle = min(_IDLE, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _TRICKLING - _SPARE)
    most = idle + _TRICKLING + 200
    config.write_text(_CONFIG.format(path=orjson.dumps(str(vector)).decode(), connections=most), encoding="utf-8")
    body = orjson.dumps({"input_data": [0.5] * 16})
    alone: list[wrk.Load] = []
    beside: list[wrk.Load] = []
    bytes_each: list[float] = []
    counts: Counter[str] = Counter()
    with roundhouse(config=config) as server:
        wrk.press(server, "/models/vector/infer", body, _CALLERS, 1)
        for _ in range(_ROUNDS):
            alone.append(wrk.press(server, "/models/vector/infer", body, _CALLERS, _SECONDS))
            before_bytes = server.resident_bytes()
            with _crowd(server, idle) as crowd:
                # More memory than before, if it is the first crowd: later ones get what the first one freed.
                bytes_each.append((server.resident_bytes() - before_bytes) / (crowd.idle + _TRICKLING))
                beside.append(wrk.press(server, "/models/vector/infer", body, _CALLERS, _SECONDS))
            counts += crowd.counts
            _wait_until_gone(server)
    if counts["idle closed"]:
        raise RuntimeError(
            f"{counts['idle closed']} connections were idle for 75 s before a round ended: the machine is busy"
        )
    return _rows(idle, alone, beside, bytes_each[0], counts)


@contextmanager
def _crowd(server: RunningServer, idle: int) -> Iterator[_Crowd]:
    """Hold the connections from another process during the block."""
    command = [sys.executable, "-m", "tools.bench.limits.crowd", *map(str, (server.port, idle, _TRICKLING))]
    with on_cores(LOAD_CORES):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        crowd = _Crowd(json.loads(process.stdout.readline())["idle"], Counter())
        yield crowd
        process.stdin.write(b"\n")
        process.stdin.flush()
        crowd.counts.update(json.loads(process.stdout.readline()))


def _wait_until_gone(server: RunningServer) -> None:
    """Wait until the server has noticed that the crowd is gone."""
    until_s = time.monotonic() + _GONE_S
    server.connection.close()  # the server may have closed it meanwhile; another is opened
    while time.monotonic() < until_s:
        server.connection.request("GET", "/metrics")
        lines = server.connection.getresponse().read().decode().splitlines()
        (open_now,) = (line for line in lines if line.startswith("roundhouse_connections "))
        if float(open_now.split()[1]) <= 2 * _CALLERS:
            return
        time.sleep(0.1)
    raise RuntimeError(f"connections were still open {_GONE_S:.0f} s after their end")


def _rows(
    idle: int, alone: list[wrk.Load], beside: list[wrk.Load], bytes_each: float, counts: Counter[str]
) -> list[Row]:
    p99 = [load.p99_ms for load in beside], [load.p99_ms for load in alone]
    return [
        Row(
            f"16 floats in JSON, {_CALLERS} callers beside {idle:,} idle connections and {_TRICKLING:,} that send a "
            "byte of a head each second: p99",
            f"{median(p99[0]):.1f} ms, {ratio(*p99):.2f} times",
            "≤ 2 times",
            f"alone {median(p99[1]):.1f} ms",
        ),
        Row(
            "the same: requests per second",
            f"{median(load.per_second for load in beside):,.0f}",
            "-",
            f"alone {median(load.per_second for load in alone):,.0f}",
        ),
        Row(
            "slow heads of the same that were answered 408",
            f"{counts['answered 408']:,}",
            "-",
            f"{counts['closed']:,} closed otherwise",
        ),
        Row("resident memory of an open connection", f"{bytes_each / 1024:.1f} KiB"),
    ]
