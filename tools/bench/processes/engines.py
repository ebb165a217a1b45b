"""Measure what processes add: to requests, texts, generation, latency, crashes and memory; and several workers."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

from tools.bench.processes.engine_configs import Entry, write_config
from tools.bench.processes.engine_crashes import measure_engine_crashes
from tools.bench.processes.engine_latency import measure_engine_latency
from tools.bench.processes.engine_memory import measure_engine_memory
from tools.bench.processes.engine_rates import measure_engine_rates
from tools.bench.processes.engine_workers import measure_workers
from tools.bench.shared import wrk
from tools.bench.shared.open_inference import Way, image_ways, vector_ways
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 21
_SECONDS = 1
_INSIDE, _APART = "inside", "apart"


def measure_engines(folder: Path, image: Path, vector: Path, models: Path) -> list[Row]:
    """Measure each model in the server and in a process of its own, in alternating rounds."""
    own = folder / "engines"
    own.mkdir()
    return [
        # First: this process has not imported torch, whose pages would be shared with the engine's.
        *measure_engine_memory(own, vector, models / "minilm"),
        *_request_rows(own, image, vector),
        *measure_engine_rates(own, models / "minilm-onnx"),
        *measure_engine_latency(own, vector, models / "minilm-onnx"),
        *measure_engine_crashes(own, vector),
        *measure_workers(own, image, vector),
    ]


def _request_rows(folder: Path, image: Path, vector: Path) -> list[Row]:
    """Measure both places in one server, on one core."""
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("requests through the process of a model", "-", compared=wrk.MISSING)]
    tiny = _loads(folder, vector, vector_ways()["infer"], connections=32)
    large = _loads(folder, image, image_ways()["v2"], connections=8)
    alone = _loads(folder, image, image_ways()["v2"], connections=1)
    return [_tiny_row(tiny), *_image_rows(large, alone)]


def _loads(folder: Path, model: Path, way: Way, connections: int) -> dict[str, list[wrk.Load]]:
    path, body, headers = way
    config = write_config(folder / "requests.toml", [Entry(_INSIDE, model), Entry(_APART, model, isolated=True)])
    with roundhouse(config=config) as server:
        presses = {}
        for name in (_INSIDE, _APART):
            own_path = path.replace(f"/{model.stem}/", f"/{name}/")
            wrk.press(server, own_path, body, connections, 1, headers)
            presses[name] = partial(wrk.press, server, own_path, body, connections, _SECONDS, headers)
        return in_turn(presses, _ROUNDS)


def _tiny_row(loads: Mapping[str, list[wrk.Load]]) -> Row:
    inside, apart = _cpu_us(loads, _INSIDE), _cpu_us(loads, _APART)
    added = median(after - before for after, before in zip(apart, inside, strict=True))
    return Row(
        "16 floats in JSON through the process of a model, 32 connections: CPU added to a request, both processes",
        f"{added:+.1f} µs",
        "≤ 25 µs",
        f"{median(apart):.1f} µs with the process, {median(inside):.1f} µs in the server; medians of the latency "
        f"{_latency_ms(loads, _APART):.2f} and {_latency_ms(loads, _INSIDE):.2f} ms",
    )


def _image_rows(large: Mapping[str, list[wrk.Load]], alone: Mapping[str, list[wrk.Load]]) -> list[Row]:
    inside, apart = _cpu_us(large, _INSIDE), _cpu_us(large, _APART)
    taken = {name: [1 / load.per_second for load in loads] for name, loads in large.items()}
    what = "602,112-byte image as a binary tensor through the process of a model, 8 connections"
    return [
        Row(
            f"{what}: CPU a request, both processes",
            f"{ratio(apart, inside):.2f} times in the server",
            "≤ 1.10 times",
            f"{median(apart):.0f} µs and {median(inside):.0f} µs",
        ),
        Row(
            "the same: time a request, on one core",
            f"{ratio(taken[_APART], taken[_INSIDE]):.2f} times in the server",
            "≤ 1.10 times",
            f"one connection: median latency {_latency_ms(alone, _APART):.2f} and {_latency_ms(alone, _INSIDE):.2f} ms",
        ),
    ]


def _cpu_us(loads: Mapping[str, list[wrk.Load]], name: str) -> list[float]:
    return [load.cpu_us for load in loads[name]]


def _latency_ms(loads: Mapping[str, list[wrk.Load]], name: str) -> float:
    return median(load.p50_ms for load in loads[name])
