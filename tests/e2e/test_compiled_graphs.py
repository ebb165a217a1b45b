"""Graphs of encoders with compiled layers over the API: their vectors, their description, and a refusal."""

from pathlib import Path

import numpy as np
import pytest

from tests.e2e.server import MODELS, assert_refused, serving
from tests.frameworks.pytorch.compiled.layers import needs_vectors
from tests.support.models.embedded_encoders import save_first_layers

pytestmark = [pytest.mark.isa, needs_vectors]

TEXTS = ["A roundhouse is where engines wait.", "steam", "Locomotives are kept in a shed. " * 20]


def test_graph_served_by_compiled_layers(tmp_path: Path) -> None:
    encoder = save_first_layers(MODELS / "minilm-onnx", tmp_path / "encoder", layers=2)
    entry = f'[[models.onnx_models]]\npath = "{encoder}"\n'
    config = f"""
[models]
cache_dir = "{tmp_path / "cache"}"
roots = ["{tmp_path}", "{MODELS}"]
{entry}name = "graph"
{entry}name = "layers"
kernels = "compiled"
{entry}name = "measured"
kernels = "auto"
"""
    with serving(tmp_path, config, needs_torch=True) as server:
        server.wait_ready()
        models = {name: server.client.get(f"/models/{name}").json() for name in ("graph", "layers", "measured")}
        assert [each["framework"] for each in models.values()] == ["onnx"] * 3
        assert [each["kernel"] for each in models["layers"]["kernels"]] == ["compiled"]
        assert models["graph"]["kernels"] == []
        trials = models["measured"]["kernels"][0]["trials"]
        assert [each["kernel"] for each in trials] == ["onnxruntime", "compiled"]
        expected = np.array(server.infer("graph", text=TEXTS)["embeddings"])
        for name in ("layers", "measured"):
            found = np.array(server.infer(name, text=TEXTS)["embeddings"])
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        refused = server.client.post("/models/layers/infer", json={"input_data": [[1, 2]]})
        assert_refused(refused, 400, "invalid_input", "text")
        more = {"framework": "onnx", "name": "digits", "path": str(MODELS / "digits"), "kernels": "compiled"}
        refused = server.client.post("/models", json=more)
        assert_refused(refused, 400, "invalid_input", "kernels: expected the graph of an encoder", "remove kernels")
        assert server.infer("graph", text="steam")["embeddings"]
