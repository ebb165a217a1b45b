"""Measure requests per second of an ONNX graph of many short kernels: served, served by captured graphs, and alone."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import orjson
from onnx import TensorProto, helper, numpy_helper

from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_WIDTH = 256
_TOLERANCE = 2e-2
"""Of outputs between -1 and 1: a matmul on CUDA rounds its inputs to TF32."""

_LABELS = {"cuda": "captured graphs", "cpu": "the same model again"}

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work on a kind of device."""

    layers: int
    requests: int
    rounds: int


SCALES = {"cuda": Scale(100, 2000, 3), "cpu": Scale(4, 50, 1)}


def measure_graphs(work: Path, device: str) -> Iterator[Row]:
    """Yield rows for requests of 1 and 8 rows. `device` cpu: no graph is captured.

    Raises RuntimeError for an onnxruntime without CUDA, and if outputs differ.
    """
    scale = SCALES[device]
    provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        raise RuntimeError(f"expected an onnxruntime with {provider}, got {ort.get_available_providers()}")
    file = write_chain(work / "chain.onnx", scale.layers)
    session = ort.InferenceSession(str(file), providers=[provider])
    config = work / "graphs.toml"
    config.write_text(_entries(file, device), encoding="utf-8")
    with roundhouse(config=config, cores=None) as server:
        for rows in (1, 8):
            x = np.random.default_rng(rows).standard_normal((rows, _WIDTH)).astype(np.float32)
            body = orjson.dumps({"inputs": {"x": {"data": x.ravel().tolist(), "shape": [*x.shape]}}})
            difference = _largest_difference(server, body, session, x)
            if difference > _TOLERANCE:
                raise RuntimeError(f"expected outputs within {_TOLERANCE} of a session alone, got {difference:.4f}")
            ways: dict[str, Callable[[], float]] = {
                name: partial(_closed_s, server, name, body, scale.requests) for name in ("plain", "captured")
            }
            ways["alone"] = partial(_alone_s, session, x, scale.requests)
            for warm_up in ways.values():
                warm_up()
            seconds = in_turn(ways, scale.rounds)
            rates = {name: [scale.requests / each for each in of_way] for name, of_way in seconds.items()}
            yield Row(
                f"ONNX, {scale.layers} layers of {_WIDTH}, {rows} rows a request, 1 caller: {_LABELS[device]}",
                f"{median(rates['captured']):.0f} req/s, {ratio(rates['captured'], rates['plain']):.2f} times",
                compared=f"without: {median(rates['plain']):.0f} req/s; a session alone {median(rates['alone']):.0f}",
            )


def write_chain(file: Path, layers: int) -> Path:
    """Write a graph x [n, width] → y of matmuls and tanh from a fixed seed; return the file."""
    draw = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(layers):
        weight = (draw.standard_normal((_WIDTH, _WIDTH)) / _WIDTH**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [f"h{layer}" if layer else "x", f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"h{layer + 1}" if layer + 1 < layers else "y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", _WIDTH]) for name in "xy")
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, file)
    return file


def _entries(file: Path, device: str) -> str:
    """Return two models of the graph; the second one is captured on CUDA."""
    common = f'path = "{file}"\nisolation = "process"\ndevice = "{device}"\n'
    captured = 'execution_providers = ["CUDA"]\ncuda_graph = true\n' if device == "cuda" else ""
    entries = (("plain", common), ("captured", common + captured))
    return "".join(f'[[models.onnx_models]]\nname = "{name}"\n{keys}' for name, keys in entries)


def _largest_difference(server: RunningServer, body: bytes, session: ort.InferenceSession, x: Floats) -> float:
    wanted = np.asarray(session.run(None, {"x": x})[0])
    answers = [server.post(f"/models/{name}/infer", body)["outputs"]["y"]["data"] for name in ("plain", "captured")]
    return max(float(np.abs(np.asarray(answer, np.float32) - wanted).max()) for answer in answers)


def _closed_s(server: RunningServer, name: str, body: bytes, requests: int) -> float:
    return asyncio.run(closed_loop(server.port, [request_of(f"/models/{name}/infer", body)], 1, requests))


def _alone_s(session: ort.InferenceSession, x: Floats, requests: int) -> float:
    began_s = time.perf_counter()
    for _ in range(requests):
        session.run(None, {"x": x})
    return time.perf_counter() - began_s
