"""A graph that refuses made-up values is batched when the requests of its callers have shown that it may be."""

from pathlib import Path

import numpy as np
from onnx import ModelProto, helper

from frameworks.scheduling.batch.trials.batching_trials import AGREEMENTS, SPACING
from frameworks.types import Array
from tests.e2e.configs import onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer, wait_until
from tests.support.models.onnx_graphs import model_of


def looked_up(mixes_rows: bool = False) -> ModelProto:
    """x int64 [n] from 200 to 289 → y = x - 200; other numbers are refused. `mixes_rows`: y of the largest x."""
    nodes = [helper.make_node("Sub", ["x", "first"], ["place"]), helper.make_node("Gather", ["table", "place"], ["at"])]
    nodes.append(helper.make_node("ReduceMax", ["at"], ["largest"], keepdims=1))
    nodes.append(helper.make_node("Sub", ["at", "largest"] if mixes_rows else ["at", "at"], ["rest"]))
    nodes.append(helper.make_node("Sub", ["at", "rest"], ["y"]))
    table: dict[str, Array] = {"first": np.array([200], np.int64), "table": np.arange(90, dtype=np.float32)}
    return model_of(nodes, [("x", "int64", ("n",))], [("y", "float32", ("n",))], table)


def batching(server: RunningServer, model: str) -> str:
    text: str = server.client.get(f"/models/{model}").json()["version_details"]["1"]["batching"]
    return text


def test_requests_decide_about_batching(start: Start, tmp_path: Path) -> None:
    graphs = {"apart": looked_up(), "mixed": looked_up(mixes_rows=True)}
    server = start(onnx_entries(tmp_path, graphs)).wait_ready()
    for name in graphs:
        detail = server.client.get(f"/models/{name}").json()
        assert "the graph refuses made-up values" in detail["warm_up"]
        assert batching(server, name) == "it was not warmed up; the rows of requests are compared"
        for number in range(SPACING * AGREEMENTS):
            x = 200 + number % 90
            assert server.infer(name, inputs={"x": [x]})["outputs"]["y"]["data"] == [number % 90]
    wait_until(lambda: batching(server, "apart") == "on")
    wait_until(lambda: "compared" not in batching(server, "mixed"))
    assert batching(server, "mixed") == 'output "y" of rows of two requests differs from its single runs'
    metadata = server.client.get("/v2/models/apart").json()
    assert metadata["inputs"] == [{"name": "x", "datatype": "INT64", "shape": [-1]}]
    for name in graphs:
        assert server.infer(name, inputs={"x": [205]})["outputs"]["y"]["data"] == [5]
