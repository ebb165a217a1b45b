"""Measure requests per second and latency of tensors in JSON beside other servers, with wrk."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
import psutil

from tools.bench.peers.start import enter, enter_peer, litserve, mlserver, no_op, plain_fastapi
from tools.bench.shared import wrk
from tools.bench.shared.models import vector_weights
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row, percent

_ROUNDS = 5
_SECONDS = 2
_LATENCY_SECONDS = 1
# Longer: the plain server answers few of these, and requests in progress at the end do not count.
_IMAGE_SECONDS = 4
_VECTOR = [0.5] * 16
_BODIES_TO_COMPILE = 10
_COMPILED_WITHIN_S = 120.0
_IMAGE_FLOATS = 3 * 224 * 224
_PEERS = ("plain FastAPI", "LitServe", "MLServer")
_MAY_LACK = ("LitServe", "MLServer")
_FLOOR = "uvicorn no-op"

Loads = Mapping[str, list[wrk.Load]]


@dataclass(frozen=True, slots=True)
class _Way:
    """One server with the model and its requests, paused unless it is under load."""

    server: RunningServer
    path: str
    body: bytes

    def press(self, connections: int, seconds: int) -> wrk.Load:
        with self.server.awake():
            return wrk.press(self.server, self.path, self.body, connections, seconds)

    def answer(self) -> Any:
        with self.server.awake():
            return self.server.post(self.path, self.body)


def measure_throughput(image: Path, vector: Path) -> list[Row]:
    """Return the rows of the 16-float model at 32 connections and at one, and of 150,528 floats at 8."""
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("requests per second and latency", "-", compared=wrk.MISSING)]
    with _vector_ways(vector) as ways:
        many = _measured(ways, connections=32)
        one = _measured(
            {name: ways[name] for name in ("ours", "plain FastAPI", _FLOOR)}, connections=1, seconds=_LATENCY_SECONDS
        )
    with _image_ways(image) as ways:
        _compile_numbers(ways["ours"])
        large = _measured(ways, connections=8, seconds=_IMAGE_SECONDS)
    return [_many_row(many), _one_row(one), _large_row(large)]


def _compile_numbers(way: _Way) -> None:
    """Send enough numbers for the server to compile their reader, and wait for the process that does it."""
    for _ in range(_BODIES_TO_COMPILE):
        way.answer()
    process = psutil.Process(way.server.process.pid)
    deadline_s = time.monotonic() + _COMPILED_WITHIN_S
    with way.server.awake():
        time.sleep(1)
        while process.children() and time.monotonic() < deadline_s:
            time.sleep(1)


def _measured(ways: Mapping[str, _Way], connections: int, seconds: int = _SECONDS) -> Loads:
    """Warm up for a second, then measure the rounds."""
    for way in ways.values():
        way.press(connections, 1)
    presses = {name: partial(way.press, connections, seconds) for name, way in ways.items()}
    return in_turn(presses, _ROUNDS)


@contextmanager
def _vector_ways(model: Path) -> Iterator[dict[str, _Way]]:
    """Start every server that runs here. Raises if one gives a wrong product."""
    body = orjson.dumps({"input_data": _VECTOR})
    v2_input = {"name": "x", "shape": [1, len(_VECTOR)], "datatype": "FP32", "data": _VECTOR}
    known = {
        "ours": (roundhouse([str(model)]), "/models/vector/infer", body),
        "plain FastAPI": (plain_fastapi(model), "/infer", body),
        "LitServe": (litserve("vector", model), "/infer", body),
        "MLServer": (mlserver(model), "/v2/models/vector/infer", orjson.dumps({"inputs": [v2_input]})),
        _FLOOR: (no_op(), "/", body),
    }
    ways = {}
    with ExitStack() as stack:
        for name, (starting, path, question) in known.items():
            server = enter_peer(stack, name, starting) if name in _MAY_LACK else enter(stack, starting)
            if server is None:
                continue
            ways[name] = way = _Way(server, path, question)
            if name != _FLOOR:
                _check(name, way.answer())
        yield ways


def _check(name: str, answer: Any) -> None:
    numbers = answer["output_data"] if "output_data" in answer else answer["outputs"][0]["data"]
    if not np.allclose(np.ravel(numbers), np.array(_VECTOR, dtype=np.float32) @ vector_weights(), rtol=1e-5):
        raise RuntimeError(f"{name} answers something else: {answer}")


@contextmanager
def _image_ways(model: Path) -> Iterator[dict[str, _Way]]:
    pixels = np.random.default_rng(0).random(_IMAGE_FLOATS, dtype=np.float32)
    body = orjson.dumps({"input_data": pixels}, option=orjson.OPT_SERIALIZE_NUMPY)
    with ExitStack() as stack:
        ours, plain = (enter(stack, starting) for starting in (roundhouse([str(model)]), plain_fastapi(model)))
        yield {"ours": _Way(ours, "/models/image/infer", body), "plain FastAPI": _Way(plain, "/infer", body)}


def _many_row(loads: Loads) -> Row:
    ours_cpu_us = _median(loads, "ours", "cpu_us")
    beside = [_beside(loads, name) for name in _PEERS]
    floor = ratio(_values(loads, "ours", "per_second"), _values(loads, _FLOOR, "per_second"))
    beside.append(f"{_FLOOR} {_median(loads, _FLOOR, 'per_second'):,.0f} req/s: {percent(floor)} of it")
    return Row(
        "16 floats in JSON, 32 connections",
        f"{_median(loads, 'ours', 'per_second'):,.0f} req/s, {ours_cpu_us:.0f} µs CPU a request",
        "≥ 4 times plain FastAPI, ≥ 40 % of the no-op, ≤ 65 µs",
        "; ".join(beside),
    )


def _one_row(loads: Loads) -> Row:
    others = [f"{name} {_median(loads, name, 'p50_ms'):.2f} ms" for name in loads if name != "ours"]
    figure = f"{_median(loads, 'ours', 'p50_ms'):.2f} ms"
    return Row("the same, one connection: median latency", figure, "≤ 0.26 ms", "; ".join(others))


def _large_row(loads: Loads) -> Row:
    figure = f"{_median(loads, 'ours', 'per_second'):.0f} req/s, {_median(loads, 'ours', 'cpu_us') / 1e3:.1f} ms CPU"
    return Row(
        "150,528 floats in JSON, 8 connections", figure, "≥ 10 times plain FastAPI", _beside(loads, "plain FastAPI")
    )


def _beside(loads: Loads, name: str) -> str:
    """Return `plain FastAPI 2,000 req/s, 460 µs: 4.1 times`, or a dash for a server that did not run."""
    if name not in loads:
        return f"{name} -"
    times = ratio(_values(loads, "ours", "per_second"), _values(loads, name, "per_second"))
    per_second, cpu_us = _median(loads, name, "per_second"), _median(loads, name, "cpu_us")
    return f"{name} {per_second:,.0f} req/s, {cpu_us:,.0f} µs: {times:.1f} times"


def _values(loads: Loads, name: str, field: str) -> list[float]:
    return [getattr(load, field) for load in loads[name]]


def _median(loads: Loads, name: str, field: str) -> float:
    return median(_values(loads, name, field))
