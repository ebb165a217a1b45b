"""The embedded encoder with fewer layers, for tests that need trained weights but not all of them."""

import json
import shutil
from pathlib import Path

import onnx

_FILE = "model.onnx"
_LAYER_NORMS = 2
"""Of each layer, after that of the embeddings."""


def save_first_layers(embedded: Path, folder: Path, layers: int) -> Path:
    """Save the ONNX graph of a BERT-family encoder below ./models with its first layers only, and its other files."""
    shutil.copytree(embedded, folder, ignore=shutil.ignore_patterns(_FILE))
    model = onnx.load(embedded / _FILE)
    graph = model.graph
    norms = [i for i, node in enumerate(graph.node) if node.op_type == "LayerNormalization"]
    last = norms[_LAYER_NORMS * layers]
    del graph.node[last + 1 :]
    graph.node[last].output[0] = graph.output[0].name
    needed = {name for node in graph.node for name in node.input}
    kept = [weights for weights in graph.initializer if weights.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.value_info[:]
    onnx.checker.check_model(model)
    onnx.save(model, folder / _FILE)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}), encoding="utf-8")
    return folder
