"""Quantized models over the API: their description, their outputs, and a refusal."""

from pathlib import Path

import numpy as np

from frameworks.quantization.comparison import row_cosines
from tests.e2e.server import MODELS, assert_refused, serving
from tests.support.models.embedded_encoders import save_first_layers
from tests.support.models.text_files import change_json
from tests.support.models.torch_folders import save_embedder

TEXTS = ["A roundhouse is where engines wait.", "Locomotives are kept in a shed.", "def f(x): return x"]
FIGURES = {
    *("scheme", "cosine_min", "cosine_mean", "speedup", "bytes_before", "bytes_after"),
    *("original_ms", "quantized_ms", "kernel", "weights", "kernels"),
    *("perplexity", "perplexity_original"),
}


def test_quantised_models_described_accurate_and_cached(tmp_path: Path) -> None:
    save_embedder(tmp_path / "tiny")
    encoder = save_first_layers(MODELS / "minilm-onnx", tmp_path / "encoder", layers=3)
    change_json(encoder / "sentence_bert_config.json", max_seq_length=64)
    config = f"""
[models]
cache_dir = "{tmp_path / "cache"}"
roots = ["{tmp_path}"]
[[models.onnx_models]]
name = "fp32"
path = "{encoder}"
[[models.onnx_models]]
name = "int8"
path = "{encoder}"
quantized = true
[[models.torch_models]]
name = "tiny"
path = "{tmp_path / "tiny"}"
dtype = "int8"
[[models.torch_models]]
name = "writer"
path = "{MODELS / "tiny-llama"}"
dtype = "int4"
"""
    with serving(tmp_path, config) as server:
        server.wait_ready()
        models = {name: server.client.get(f"/models/{name}").json() for name in ("fp32", "int8", "tiny")}
        assert (models["fp32"]["quantized"], models["fp32"]["quantization"]) == (False, None)
        for name, scheme in (("int8", "int8"), ("tiny", "int8")):
            figures = models[name]["quantization"]
            assert (models[name]["quantized"], figures.keys(), figures["scheme"]) == (True, FIGURES, scheme)
            assert 0.97 <= figures["cosine_min"] <= figures["cosine_mean"] <= 1
            assert figures["bytes_after"] < figures["bytes_before"]
            assert figures["bytes_after"] <= models[name]["memory_bytes"]
            assert min(figures["original_ms"], figures["quantized_ms"]) > 0
            assert figures["weights"] in ("whole", "paired", "halved")
        writer = server.client.get("/models/writer").json()
        accuracy = writer["quantization"]
        assert accuracy["scheme"].startswith("int4")
        assert 0 < accuracy["perplexity"] <= 1.05 * accuracy["perplexity_original"]
        assert sum(each["layers"] for each in writer["kernels"]) == 31
        assert {each["inputs"] for each in writer["kernels"]} == {192, 512}
        assert models["tiny"]["quantization"]["perplexity"] is None
        assert (models["int8"]["quantization"]["kernel"], models["int8"]["quantization"]["kernels"]) == (
            "onnxruntime",
            [],
        )
        trials = {trial["kernel"]: trial for trial in models["tiny"]["quantization"]["kernels"]}
        chosen = trials[models["tiny"]["quantization"]["kernel"]]
        assert trials["original"]["error"] == 0 < chosen["error"] < 0.1
        assert chosen["weights"] == models["tiny"]["quantization"]["weights"]
        assert chosen["milliseconds"].keys() == trials["original"]["milliseconds"].keys() == {"16", "128"}
        # More than half of this memory is that of the words, which stay floats.
        assert models["int8"]["memory_bytes"] < 0.85 * models["fp32"]["memory_bytes"]
        original, quantized = (
            np.array(server.infer(name, text=TEXTS)["embeddings"], np.float32) for name in ("fp32", "int8")
        )
        assert 0.97 < row_cosines(original, quantized).min() < 1 - 1e-6
        entry = {"framework": "onnx", "name": "x", "path": str(encoder), "quantized": True}
        refused = server.client.post("/models", json=entry | {"min_cosine": 0.999})
        assert_refused(refused, 400, "invalid_input", "at worst", "expected min_cosine 0.999", '"mixed"')
        server.stop()

    with serving(tmp_path, config.partition("[[models.torch_models]]")[0]) as server:
        again = server.wait_ready().client.get("/models/int8").json()
        assert again["quantization"] == models["int8"]["quantization"]
        server.stop()
