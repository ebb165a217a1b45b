"""Models that are registered with values for their warm-up."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.conftest import Start
from tests.e2e.server import assert_refused
from tests.support.models import onnx_graphs


def test_values_of_warm_up_are_registered_and_run(start: Start, tmp_path: Path) -> None:
    server = start('[models]\nroots = ["."]\n').wait_ready()
    (tmp_path / "m").mkdir()
    onnx_graphs.save(onnx_graphs.misdeclared(), tmp_path / "m")
    np.savez(tmp_path / "m" / "values.npz", x=np.full(3, -100, np.float32))
    entry = {"framework": "onnx", "name": "m", "path": "m"}
    warm_ups: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "refuses made-up values"),
        ({"input_values": "values.npz"}, "done"),
        ({"warm_up": [{"x": [-100] * 3}]}, "done"),
    )
    for keys, warm_up in warm_ups:
        added = server.client.post("/models", json=entry | keys)
        assert added.status_code == 201, added.text
        assert warm_up in added.json()["warm_up"]
        assert server.infer("m", input_data=[-100] * 3)["output_data"] == [0, 0, 0]
        server.client.delete("/models/m")
    for keys, status, code, words in (
        ({"warm_up": [{"x": [7, 7, 7]}]}, 400, "invalid_input", "the graph refuses the values of its entry"),
        ({"input_values": "../m/values.npz"}, 400, "invalid_input", "input_values: expected a .npz file in the folder"),
        ({"warm_up": 3}, 400, "invalid_input", "warm_up: expected 1 to 16 tables"),
    ):
        refused = server.client.post("/models", json=entry | keys)
        assert_refused(refused, status, code, words)
