"""Measure server CPU per request for tensors in JSON beside a plain FastAPI endpoint."""

from pathlib import Path
from statistics import median

import numpy as np
import orjson

from tools.bench.peers.start import plain_fastapi
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 7
_IMAGE_REQUESTS = 40
_VECTOR_REQUESTS = 1500
_IMAGE_SHAPE = (1, 3, 224, 224)


def measure_requests(image: Path, vector: Path) -> list[Row]:
    """Return CPU milliseconds per request, medians of alternating rounds; load and servers have a core each."""
    with on_cores(LOAD_CORES):
        return [*_image_rows(image), *_vector_rows(vector)]


def _image_rows(model: Path) -> list[Row]:
    pixels = np.random.default_rng(0).random(_IMAGE_SHAPE, dtype=np.float32)
    flat = orjson.dumps({"input_data": pixels.reshape(-1)}, option=orjson.OPT_SERIALIZE_NUMPY)
    nested = orjson.dumps({"input_data": pixels}, option=orjson.OPT_SERIALIZE_NUMPY)
    doubles = orjson.dumps({"input_data": pixels.astype(np.float64).reshape(-1)}, option=orjson.OPT_SERIALIZE_NUMPY)
    with roundhouse([str(model)]) as ours, plain_fastapi(model) as plain:
        ways = {
            "flat": (ours, "/models/image/infer", flat),
            "nested": (ours, "/models/image/infer", nested),
            "doubles": (ours, "/models/image/infer", doubles),
            "plain": (plain, "/infer", flat),
        }
        cpu_ms = _in_turn(ways, _IMAGE_REQUESTS)
    compared = f"plain FastAPI + pydantic {cpu_ms['plain']:.1f} ms: {cpu_ms['plain'] / cpu_ms['flat']:.1f} times"
    return [
        Row("150,528 floats in JSON, flat: server CPU a request", f"{cpu_ms['flat']:.1f} ms", "≤ 12 ms", compared),
        Row("the same, nested [1, 3, 224, 224]", f"{cpu_ms['nested']:.1f} ms", "≤ 12 ms"),
        Row("the same, flat, with the digits of doubles (2.9 MB)", f"{cpu_ms['doubles']:.1f} ms", "≤ 12 ms"),
    ]


def _vector_rows(model: Path) -> list[Row]:
    body = orjson.dumps({"input_data": [0.5] * 16})
    with roundhouse([str(model)]) as ours, plain_fastapi(model) as plain:
        ways = {"ours": (ours, "/models/vector/infer", body), "plain": (plain, "/infer", body)}
        cpu_ms = _in_turn(ways, _VECTOR_REQUESTS)
    return [
        Row(
            "16 floats in JSON, one connection: server CPU a request",
            f"{cpu_ms['ours'] * 1e3:.0f} µs",
            compared=f"plain FastAPI {cpu_ms['plain'] * 1e3:.0f} µs: {cpu_ms['plain'] / cpu_ms['ours']:.1f} times",
        )
    ]


def _in_turn(ways: dict[str, tuple[RunningServer, str, bytes]], requests: int) -> dict[str, float]:
    """Return CPU milliseconds per request by variant: the median of alternating rounds after a warm-up."""
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(_ROUNDS + 1):
        for name, (server, path, body) in ways.items():
            before_s = server.cpu_s()
            for _ in range(requests):
                server.post(path, body)
            if round_number:
                figures[name].append((server.cpu_s() - before_s) / requests * 1e3)
    return {name: median(values) for name, values in figures.items()}
