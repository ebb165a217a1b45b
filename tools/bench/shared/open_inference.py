"""Measure server CPU per request of the Open Inference Protocol over REST beside /infer."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from tools.bench.shared import wrk
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 7
_SECONDS = 2
_VECTOR = [0.5] * 16
_IMAGE_SHAPE = (1, 3, 224, 224)
_JSON = {"content-type": "application/json"}

Way = tuple[str, bytes, Mapping[str, str]]


def measure_open_inference(image: Path, vector: Path) -> list[Row]:
    """Measure 16 floats in JSON at 32 connections and a binary image at 8, each alternating with /infer."""
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("Open Inference Protocol over REST", "-", compared=wrk.MISSING)]
    with roundhouse([str(vector)]) as server:
        short = _measured(server, vector_ways(), connections=32)
    with roundhouse([str(image)]) as server:
        large = _measured(server, image_ways(), connections=8)
    in_json = ratio(short["v2"], short["infer"])
    return [
        Row(
            "16 floats in JSON by /v2/models/{m}/infer, 32 connections: server CPU a request",
            f"{median(short['v2']):.0f} µs",
            "≤ 1.1 times /infer",
            f"/infer {median(short['infer']):.0f} µs: {in_json:.2f} times",
        ),
        Row(
            "602,112-byte image as a binary tensor, 8 connections: server CPU a request",
            f"{median(large['v2']):.0f} µs",
            "≤ 800 µs",
            f"the same numbers in JSON by /infer {median(large['infer']):,.0f} µs: "
            f"{ratio(large['infer'], large['v2']):.1f} times",
        ),
    ]


def _measured(server: RunningServer, ways: Mapping[str, Way], connections: int) -> dict[str, list[float]]:
    """Return CPU microseconds per request by variant, after a second of warm-up."""
    presses = {}
    for name, (path, body, headers) in ways.items():
        wrk.press(server, path, body, connections, 1, headers)
        presses[name] = partial(wrk.press, server, path, body, connections, _SECONDS, headers)
    loads = in_turn(presses, _ROUNDS)
    return {name: [load.cpu_us for load in rounds] for name, rounds in loads.items()}


def vector_ways() -> dict[str, Way]:
    """Return 16 floats in JSON for /infer and for /v2."""
    tensor = {"name": "x", "shape": [1, len(_VECTOR)], "datatype": "FP32", "data": _VECTOR}
    return {
        "infer": ("/models/vector/infer", orjson.dumps({"input_data": _VECTOR}), _JSON),
        "v2": ("/v2/models/vector/infer", orjson.dumps({"inputs": [tensor]}), _JSON),
    }


def image_ways() -> dict[str, Way]:
    """Return 150,528 floats, in JSON for /infer and in bytes for /v2."""
    pixels = np.random.default_rng(0).random(_IMAGE_SHAPE, dtype=np.float32)
    size = {"binary_data_size": pixels.nbytes}
    tensor = {"name": "image", "shape": _IMAGE_SHAPE, "datatype": "FP32", "parameters": size}
    head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    in_bytes = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    in_json = orjson.dumps({"input_data": pixels.reshape(-1)}, option=orjson.OPT_SERIALIZE_NUMPY)
    return {
        "infer": ("/models/image/infer", in_json, _JSON),
        "v2": ("/v2/models/image/infer", head + pixels.tobytes(), in_bytes),
    }
