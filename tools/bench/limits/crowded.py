"""Measure latencies and CPU of 64 to 4,096 connections that connect together and each send all the time."""

import resource
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import orjson

from tools.bench.peers.start import enter, no_op
from tools.bench.shared import wrk
from tools.bench.shared.rounds import in_turn
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_CONNECTIONS = (64, 256, 1024, 4096)
_ROUNDS = 3
_SECONDS = 5
_SPARE = 200
"""File descriptors of wrk and of a server for everything but the connections."""
# A full queue would refuse some requests, and not show how long they wait.
_CONFIG = """
[scheduling]
max_queue_size = 16384
[[models.onnx_models]]
name = "vector"
path = {path}
"""


def measure_crowded(folder: Path, vector: Path) -> list[Row]:
    """Return a row for each number of connections that the limit on open files permits."""
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("latency of many connections", "-", compared=wrk.MISSING)]
    config = folder / "crowded.toml"
    config.write_text(_CONFIG.format(path=orjson.dumps(str(vector)).decode()), encoding="utf-8")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE
    with ExitStack() as stack:
        ours, floor = enter(stack, roundhouse(config=config)), enter(stack, no_op())
        return [_row(ours, floor, count) for count in _CONNECTIONS if count <= most]


def _row(ours: RunningServer, floor: RunningServer, connections: int) -> Row:
    """Press both servers in turn. Each round begins with new connections."""
    ways = {
        "ours": partial(_press, ours, "/models/vector/infer", connections),
        "no-op": partial(_press, floor, "/", connections),
    }
    loads = in_turn(ways, _ROUNDS)
    return Row(
        f"16 floats in JSON, {connections:,} connections: p99, longest, CPU a request",
        _figures(loads["ours"]),
        compared=f"uvicorn no-op {_figures(loads['no-op'])}",
    )


def _press(server: RunningServer, path: str, connections: int) -> wrk.Load:
    body = orjson.dumps({"input_data": [0.5] * 16})
    with server.awake():
        return wrk.press(server, path, body, connections, _SECONDS)


def _figures(loads: list[wrk.Load]) -> str:
    p50, p99, longest = (median(getattr(load, name) for load in loads) for name in ("p50_ms", "p99_ms", "longest_ms"))
    cpu_us = median(load.cpu_us for load in loads)
    return f"{p99:,.0f} ms, {longest:,.0f} ms (median {p50:,.0f} ms), {cpu_us:.1f} µs"
