"""Measure two workers against one, with the load on the same cores, and the memory that a worker adds."""

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from tools.bench.processes.engine_configs import Entry, write_config
from tools.bench.shared import wrk
from tools.bench.shared.cores import ALL_CORES
from tools.bench.shared.open_inference import image_ways, vector_ways
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 15
_SECONDS = 2
_CONNECTIONS = 64  # 32 for each of two workers: what requests share in a round of the loop then costs the same
_ONE, _TWO = "one", "two"
_MB = 1e6
# Until a started server has read its files, and its workers have returned the memory of the start.
_SETTLE_S = 3.0


def measure_workers(folder: Path, image: Path, vector: Path) -> list[Row]:
    """Measure a tiny tensor and an image in JSON, in alternating rounds on two servers."""
    rows = [_memory_row(folder, vector)]
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [*rows, Row("two workers against one", "-", compared=wrk.MISSING)]
    with (
        roundhouse(config=_config(folder, image, vector, 1), cores=None) as one,
        roundhouse(config=_config(folder, image, vector, 2), cores=None) as two,
    ):
        servers = {_ONE: one, _TWO: two}
        rows += _rows("16 floats in JSON", servers, *vector_ways()["infer"])
        rows += _rows("an image of 150,528 floats in JSON", servers, *image_ways()["infer"])
    return rows


def _config(folder: Path, image: Path, vector: Path, workers: int) -> Path:
    file = write_config(folder / f"workers-{workers}.toml", [Entry("vector", vector), Entry("image", image)])
    file.write_text(f"[server]\nworkers = {workers}\n\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    return file


def _rows(
    what: str, servers: dict[str, RunningServer], path: str, body: bytes, headers: Mapping[str, str]
) -> list[Row]:
    presses = {
        name: partial(wrk.press, server, path, body, _CONNECTIONS, _SECONDS, headers, ALL_CORES)
        for name, server in servers.items()
    }
    in_turn(presses, 1)
    loads = in_turn(presses, _ROUNDS)
    cpu = {name: [load.cpu_us for load in each] for name, each in loads.items()}
    rates = {name: [load.per_second for load in each] for name, each in loads.items()}
    cores = f"{what}, {_CONNECTIONS} connections, two workers and the load on {len(ALL_CORES)} cores"
    return [
        Row(
            f"{cores}: server CPU a request, all processes",
            f"{ratio(cpu[_TWO], cpu[_ONE]):.2f} times one worker",
            "≤ 1.10 times",
            f"{median(cpu[_TWO]):.1f} µs and {median(cpu[_ONE]):.1f} µs",
        ),
        Row(
            f"{cores}: requests/s",
            f"{ratio(rates[_TWO], rates[_ONE]):.2f} times one worker",
            "≥ 1.6 times",
            f"{median(rates[_TWO]):.0f} and {median(rates[_ONE]):.0f} requests/s",
        ),
    ]


def _memory_row(folder: Path, vector: Path) -> Row:
    totals = {workers: _total_bytes(folder, vector, workers) for workers in (2, 4)}
    return Row(
        "a worker more: memory (PSS) of all processes",
        f"{(totals[4] - totals[2]) / 2 / _MB:+.0f} MB",
        "≤ 60 MB",
        f"{totals[4] / _MB:.0f} MB with four workers, {totals[2] / _MB:.0f} MB with two",
    )


def _total_bytes(folder: Path, vector: Path, workers: int) -> int:
    with roundhouse(config=_config(folder, vector, vector, workers), cores=None) as server:
        wrk.press(server, *vector_ways()["infer"][:2], _CONNECTIONS, _SECONDS)
        time.sleep(_SETTLE_S)
        parent = psutil.Process(server.process.pid)
        sizes = [each.memory_full_info().pss for each in (parent, *parent.children(recursive=True))]
    return sum(sizes)
