"""The weights of an exported graph are those of transformers' model, by their names."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import transformers
from onnxruntime.quantization import quantize_dynamic
from safetensors.numpy import load_file

from frameworks.onnx.encoders.weights import NotAnEncoder, read_weights
from frameworks.onnx.graph_summary import read_graph_summary
from frameworks.types import Array
from tests.e2e.server import MODELS
from tests.frameworks.conftest import FolderMaker
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.exported import export_logits, export_outputs
from tests.support.models.torch_folders import FAMILIES, Family, save_classifier, save_embedder

GRAPH = "model.onnx"
WEIGHTS = "model.safetensors"


def read(folder: Path) -> dict[str, Array]:
    return read_weights(folder / GRAPH, read_graph_summary(folder / GRAPH))


def check_equal(folder: Path, exported: Path, absent: str = "pooler.") -> None:
    found, expected = read(exported), load_file(folder / WEIGHTS)
    wanted = {name for name, each in expected.items() if each.dtype == np.float32 and absent not in name}
    assert wanted <= found.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], expected[name], name)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_have_names_of_transformers(made_once: FolderMaker, tmp_path: Path, family: Family) -> None:
    folder = made_once(save_embedder, family=family)
    check_equal(folder, export_outputs(folder, tmp_path / "graph"))


@pytest.mark.parametrize("family", FAMILIES)
def test_head_of_classifier_is_found(made_once: FolderMaker, tmp_path: Path, family: Family) -> None:
    folder = made_once(save_classifier, family=family)
    kind = transformers.AutoModelForSequenceClassification
    check_equal(folder, export_logits(folder, tmp_path / "graph", kind), absent="none")


@pytest.mark.extended
def test_newer_exporter_names_weights(made_once: FolderMaker, tmp_path: Path) -> None:
    """It keeps one name of equal weights, and runs in another process: parts of torch may be absent in this one."""
    folder = made_once(save_embedder, family="modernbert")
    module = "from pathlib import Path; from tests.support.models.exported import export_outputs; "
    command = f"{module}export_outputs(Path({str(folder)!r}), Path({str(tmp_path / 'graph')!r}), dynamo=True)"
    subprocess.run([sys.executable, "-c", command], check=True, capture_output=True)
    check_equal(folder, tmp_path / "graph")


def test_biases_name_products_without_scopes() -> None:
    """The nodes of the embedded graph have no scopes of the exporter."""
    check_equal(MODELS / "minilm", MODELS / "minilm-onnx")


def test_modules_of_sentence_transformers_are_removed(made_once: FolderMaker, tmp_path: Path) -> None:
    folder = made_once(save_embedder, family="bert")
    exported = export_outputs(folder, tmp_path / "graph")
    model = onnx.load(exported / GRAPH)
    for node in model.graph.node:
        node.name = node.name.replace("/model/", "/0/auto_model/")
        for names in (node.input, node.output):
            names[:] = [re.sub(r"^model\.", "0.auto_model.", each) for each in names]
    for each in model.graph.initializer:
        each.name = re.sub(r"^model\.", "0.auto_model.", each.name)
    dense = onnx.numpy_helper.from_array(np.ones((2, 32), np.float32), "2.linear.weight")
    model.graph.initializer.append(dense)
    onnx.save(model, exported / GRAPH)
    check_equal(folder, exported)
    assert not any("linear" in name for name in read(exported))


def quantized(graph: Path) -> None:
    quantize_dynamic(str(graph), str(graph))


def halved(graph: Path) -> None:
    model = onnx.load(graph)
    for each in model.graph.initializer:
        if each.data_type == onnx.TensorProto.FLOAT:
            each.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(each).astype(np.float16), each.name))
    onnx.save(model, graph)


def fused(graph: Path) -> None:
    model = onnx.load(graph)
    node = next(each for each in model.graph.node if each.op_type == "LayerNormalization")
    node.op_type, node.domain = "SkipLayerNormalization", "com.microsoft"
    onnx.save(model, graph)


def renamed_input(graph: Path) -> None:
    model = onnx.load(graph)
    model.graph.input[1].name = "mask"
    onnx.save(model, graph)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (quantized, "quantized; serve the graph of floats"),
        (halved, "its weights are float16; export it in float32"),
        (fused, "com.microsoft.SkipLayerNormalization of an optimizer"),
        (renamed_input, "it reads input_ids, mask, not input_ids and attention_mask"),
    ],
)
def test_other_graphs_are_refused(
    made_once: FolderMaker, tmp_path: Path, change: Callable[[Path], Any], reason: str
) -> None:
    exported = export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph")
    change(exported / GRAPH)
    with pytest.raises(NotAnEncoder, match=reason):
        read(exported)


def test_graph_without_modules_is_refused(tmp_path: Path) -> None:
    onnx_graphs.save(onnx_encoders.encoder(("last_hidden_state",)), tmp_path)
    with pytest.raises(NotAnEncoder, match=r"none of its weights has the name of a module"):
        read(tmp_path)
