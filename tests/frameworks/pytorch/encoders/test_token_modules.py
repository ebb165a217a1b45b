"""Modules between an encoder and its pooling, against SentenceTransformer.encode."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.core.errors import InvalidModel
from frameworks.types import Array
from tests.frameworks.models.loading import load_onnx, load_torch, rows_of
from tests.support.models.exported import export_states
from tests.support.models.text_files import TEXTS, change_json, write_json
from tests.support.models.torch_folders import HIDDEN_SIZE, MAX_TOKENS, save_embedder

RAGGED = ["", *TEXTS, "the engine of steam runs on . " * 20]
STATES = {"module_input_name": "token_embeddings"}
Saved = Callable[..., tuple[Path, Array]]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Save an encoder and modules; return the folder, and the vector of each of RAGGED alone."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    def save(*modules: torch.nn.Module, gives_layers: bool = True) -> tuple[Path, Array]:
        torch.manual_seed(3)
        for parameter in (each for module in modules for each in module.parameters()):
            torch.nn.init.normal_(parameter, std=0.3)
        folder = save_embedder(tmp_path / "encoder")
        change_json(folder / "config.json", output_hidden_states=gives_layers)
        encoder = Transformer(str(folder), max_seq_length=MAX_TOKENS)
        model = SentenceTransformer(modules=[encoder, *modules], device="cpu").eval()
        model.save(str(tmp_path / "saved"), create_model_card=False)
        return tmp_path / "saved", model.encode(RAGGED, batch_size=1, show_progress_bar=False)

    return save


def check(model: Any, wanted: Array) -> None:
    model.warm_up()
    text = model.spec.text
    assert (text.embedding_size, text.unpadded_because) == (wanted.shape[1], None)
    np.testing.assert_allclose(rows_of(model, RAGGED), wanted, rtol=0, atol=1e-5)
    alone = np.concatenate([rows_of(model, [each]) for each in RAGGED])
    np.testing.assert_allclose(alone, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gives_layers", [True, False])
def test_weighted_layers_equal_sentence_transformers(saved: Saved, gives_layers: bool) -> None:
    """Without output_hidden_states the module changes nothing."""
    from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

    layers = WeightedLayerPooling(HIDDEN_SIZE, num_hidden_layers=2, layer_start=1)
    folder, wanted = saved(layers, Pooling(HIDDEN_SIZE, ("mean", "max")), gives_layers=gives_layers)
    check(load_torch(folder, dtype="f32"), wanted)


def test_dense_of_tokens_equals_sentence_transformers(saved: Saved, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling

    first = Dense(HIDDEN_SIZE, 12, activation_function=torch.nn.GELU(), use_residual=True, **STATES)
    last = Dense(12, 12, bias=False, use_residual=True, **STATES)
    modules = [first, Normalize(**STATES), last, Pooling(12, ("mean", "cls")), Dense(24, 5)]
    folder, wanted = saved(*modules)
    check(load_torch(folder, dtype="f32"), wanted)
    check(load_onnx(export_states(folder, tmp_path / "graph")), wanted)


def test_convolutions_equal_sentence_transformers(saved: Saved) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import CNN, Pooling

    folder, wanted = saved(CNN(HIDDEN_SIZE, 6, [1, 3, 5]), Dense(18, 9, **STATES), CNN(9, 4, [3]), Pooling(4, "max"))
    check(load_torch(folder, dtype="f32"), wanted)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("1_CNN/cnn_config.json", {"kernel_sizes": [2]}, "cnn_config.json: kernel_sizes: expected 1 to 64 odd sizes"),
        ("1_CNN/cnn_config.json", {"stride_sizes": [2]}, "stride_sizes: expected 1 for each kernel"),
        ("1_CNN/cnn_config.json", {"out_channels": 10**9}, "out_channels: expected 1 to"),
        ("1_CNN/cnn_config.json", {"in_embedding_dimension": 7}, "in_embedding_dimension: expected 32"),
        ("1_CNN/cnn_config.json", {"kernel_sizes": [3, 5], "stride_sizes": None}, r"convs.1.weight: expected a tensor"),
        ("2_Dense/config.json", {"module_output_name": "sentence_embedding"}, "module_output_name: expected"),
        ("2_Dense/config.json", {"in_features": 5}, "in_features: expected 6"),
        ("3_WeightedLayerPooling/config.json", {"layer_start": 3}, "layer_start: expected 0 to 2"),
        ("3_WeightedLayerPooling/config.json", {"num_hidden_layers": 5, "layer_start": 4}, "num_hidden_layers: exp"),
        ("modules.json", None, "CNN: expected Pooling after it"),
    ],
)
def test_wrong_module_is_refused(saved: Saved, file: str, changes: dict[str, object] | None, message: str) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import CNN, Pooling, WeightedLayerPooling

    layers = WeightedLayerPooling(HIDDEN_SIZE, num_hidden_layers=2, layer_start=1)
    folder, _ = saved(CNN(HIDDEN_SIZE, 6, [3]), Dense(6, 5, **STATES), layers, Pooling(HIDDEN_SIZE))
    if changes is None:
        modules = json.loads((folder / file).read_text(encoding="utf-8"))
        write_json(folder / file, modules[:-1])
    else:
        change_json(folder / file, **changes)
    with pytest.raises(InvalidModel, match=message):
        load_torch(folder, dtype="f32")


def test_graph_with_module_of_tokens_is_refused(saved: Saved, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import CNN, Pooling

    folder, _ = saved(CNN(HIDDEN_SIZE, 6, [3]), Pooling(6))
    with pytest.raises(InvalidModel, match=r"CNN: expected a PyTorch model, got a graph; serve the original weights"):
        load_onnx(export_states(folder, tmp_path / "graph"))
