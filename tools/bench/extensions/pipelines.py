"""Measure server CPU of pipelines of three steps beside the direct call of one of their models."""

import time
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime
import orjson

from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 5
_REQUESTS = 600
_RUNS = 2000
_STEPS = 3
_CONFIG = """
[server]
port = 0
grpc_port = 0
[[pipelines]]
name = "models"
inputs = ["x"]
outputs = { y = "three" }
steps = [
    { name = "one", model = "m1", inputs = { x = "x" } },
    { name = "two", model = "m2", inputs = { x = "one" } },
    { name = "three", model = "m3", inputs = { x = "two" } },
]
[[pipelines]]
name = "built-in"
inputs = ["x"]
outputs = { y = "best" }
steps = [
    { name = "one", model = "m1", inputs = { x = "x" } },
    { name = "odds", builtin = "softmax", inputs = { values = "one" } },
    { name = "best", builtin = "top_k", top_k = 4, inputs = { values = "odds" } },
]
"""


def measure_pipelines(folder: Path) -> list[Row]:
    """Return CPU microseconds for each step beyond the runs of the models, from medians of alternating rounds."""
    folder.mkdir(exist_ok=True)
    config = _CONFIG
    for name in ("m1", "m2", "m3"):
        _write_square_model(folder / f"{name}.onnx")
        config += f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder}/{name}.onnx"\n'
    file = folder / "pipelines.toml"
    file.write_text(config, encoding="utf-8")
    body = orjson.dumps({"input_data": [[0.5] * 16]})
    with on_cores(LOAD_CORES), roundhouse(config=file) as server:
        own_us = _own_us(folder / "m1.onnx")
        cpu_us = _in_turn(server, {name: f"/models/{name}/infer" for name in ("m1", "models", "built-in")}, body)
    direct = cpu_us["m1"]
    of_models = (cpu_us["models"] - direct - (_STEPS - 1) * own_us) / _STEPS
    of_built_in = (cpu_us["built-in"] - direct) / (_STEPS - 1)
    compared = f"direct call {direct:.0f} µs, pipeline {cpu_us['models']:.0f} µs, a run of a model {own_us:.0f} µs"
    return [
        Row("pipeline of three models: server CPU a step", f"{of_models:.0f} µs", "≤ 30 µs", compared),
        Row(
            "pipeline of a model, softmax and top_k: server CPU a built-in step",
            f"{of_built_in:.0f} µs",
            "≤ 30 µs",
            f"direct call {direct:.0f} µs, pipeline {cpu_us['built-in']:.0f} µs",
        ),
    ]


def _write_square_model(path: Path) -> None:
    """Write x [n, 16] → y [n, 16], one product."""
    from onnx import helper, numpy_helper, save

    weights = np.random.default_rng(1).normal(scale=0.25, size=(16, 16)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 16]) for name in "xy")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "square", [x], [y], [numpy_helper.from_array(weights, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def _own_us(path: Path) -> float:
    """Return the CPU microseconds of one run of the model alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    given = {"x": np.full((1, 16), 0.5, np.float32)}
    figures = []
    for _ in range(_ROUNDS + 1):
        started_s = time.thread_time()
        for _ in range(_RUNS):
            session.run(["y"], given)
        figures.append((time.thread_time() - started_s) / _RUNS * 1e6)
    return median(figures[1:])


def _in_turn(server: RunningServer, paths: dict[str, str], body: bytes) -> dict[str, float]:
    """Return CPU microseconds a request by name: the median of alternating rounds after a warm-up."""
    figures: dict[str, list[float]] = {name: [] for name in paths}
    for round_number in range(_ROUNDS + 1):
        for name, path in paths.items():
            before_s = server.cpu_s()
            for _ in range(_REQUESTS):
                server.post(path, body)
            if round_number:
                figures[name].append((server.cpu_s() - before_s) / _REQUESTS * 1e6)
    return {name: median(values) for name, values in figures.items()}
