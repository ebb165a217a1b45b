"""Sparse vectors without logits equal those of SparseEncoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules import sparse_pooling
from frameworks.types import TEXT_OUTPUT
from tests.frameworks.models.loading import load_onnx, load_torch
from tests.support.models.exported import export_logits, export_states
from tests.support.models.sparse_folders import save_splade
from tests.support.models.text_files import TEXTS, change_json
from tests.support.models.torch_folders import HIDDEN_SIZE, MAX_TOKENS, save_embedder

ALL = [*TEXTS, "the engine of steam runs on the mat , " * 12]
Saved = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Save modules as a SparseEncoder; return the folder."""
    from sentence_transformers import SparseEncoder

    def save(*modules: torch.nn.Module, **options: Any) -> Path:
        torch.manual_seed(3)
        for parameter in (each for module in modules for each in module.parameters()):
            torch.nn.init.normal_(parameter, std=0.3)
        SparseEncoder(modules=[*modules], device="cpu", **options).save(str(tmp_path / "saved"))
        return tmp_path / "saved"

    return save


def check(folder: Path, texts: list[str] = ALL, graph: Path | None = None, rtol: float = 0.0) -> None:
    """Compare a folder, or its exported graph, with SparseEncoder."""
    from sentence_transformers import SparseEncoder

    model = load_torch(folder, dtype="f32") if graph is None else load_onnx(graph)
    model.warm_up()
    assert model.spec.text is not None
    assert (model.spec.text.vectors, model.spec.text.unpadded_because) == ("sparse", None)
    assert model.tokenizer is not None
    token_ids = model.tokenizer.tokenize(texts, truncate=True)
    reference: Any = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    expected = reference.encode(texts, convert_to_sparse_tensor=False, show_progress_bar=False).numpy()
    batches = [token_ids, *([ids] for ids in token_ids)]
    rows = [row for batch in batches for row in np.asarray(model.infer(model.tokenizer.batch_of(batch))[TEXT_OUTPUT])]
    assert model.spec.text.embedding_size == expected.shape[1]
    for (indices, values), wanted in zip(rows, [*expected, *expected], strict=True):
        dense = np.zeros(expected.shape[1], np.float32)
        dense[indices] = values
        assert values.all()
        assert (np.diff(indices) > 0).all()
        np.testing.assert_allclose(dense, wanted, rtol=rtol, atol=1e-5)


def token_weights(folder: Path, **tokenizer: Any) -> Any:
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(str(save_embedder(folder / "encoder")), **tokenizer)
    return SparseStaticEmbedding(own, torch.zeros(len(own)))


def auto_encoder(folder: Path, **options: Any) -> list[torch.nn.Module]:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

    encoder = Transformer(str(save_embedder(folder / "encoder")), max_seq_length=MAX_TOKENS)
    return [encoder, Pooling(HIDDEN_SIZE), SparseAutoEncoder(HIDDEN_SIZE, **options)]


@pytest.mark.parametrize("options", [{}, {"max_active_dims": 3}])
def test_token_weights_equal_sparse_encoder(saved: Saved, tmp_path: Path, options: dict[str, Any]) -> None:
    check(saved(token_weights(tmp_path), **options))


def test_long_texts_are_cut_at_limit(saved: Saved, tmp_path: Path) -> None:
    check(saved(token_weights(tmp_path, model_max_length=7)))


@pytest.mark.parametrize(
    ("own", "options"),
    [({"k": 5}, {}), ({"k": 4, "normalize": True}, {}), ({"k": 64, "hidden_dim": 64}, {"max_active_dims": 9})],
)
def test_auto_encoder_equals_sparse_encoder(
    saved: Saved, tmp_path: Path, own: dict[str, Any], options: dict[str, Any]
) -> None:
    check(saved(*auto_encoder(tmp_path, **{"hidden_dim": 48} | own), **options))


def test_splade_keeps_most_active_dimensions(tmp_path: Path) -> None:
    folder = save_splade(tmp_path)
    change_json(folder / "config_sentence_transformers.json", max_active_dims=6)
    check(folder)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("2_SparseAutoEncoder/config.json", {"k": 99}, "k: expected 1 to 48, got 99"),
        ("2_SparseAutoEncoder/config.json", {"input_dim": 7}, "input_dim: expected 32"),
        ("2_SparseAutoEncoder/config.json", {"hidden_dim": 64}, r"expected a tensor \[64, 32\], got \[48, 32\]"),
        ("2_SparseAutoEncoder/config.json", {"window": 7}, "window: expected a known key"),
        ("config_sentence_transformers.json", {"max_active_dims": 0}, "max_active_dims: expected 1 or more, got 0"),
        ("config_sentence_transformers.json", {"max_active_dims": 77}, "hidden_dim: expected max_active_dims = 77"),
    ],
)
def test_wrong_auto_encoder_is_refused(
    saved: Saved, tmp_path: Path, file: str, changes: dict[str, object], message: str
) -> None:
    folder = saved(*auto_encoder(tmp_path, hidden_dim=48, k=5))
    if "k" in changes:
        change_json(folder / "config_sentence_transformers.json", max_active_dims=None)
    change_json(folder / file, **changes)
    with pytest.raises(InvalidModel, match=message):
        load_torch(folder, dtype="f32")


def test_wrong_token_weights_are_refused(saved: Saved, tmp_path: Path) -> None:
    folder = saved(token_weights(tmp_path))
    change_json(folder / "config.json", path="idf.json")
    with pytest.raises(InvalidModel, match="path: expected a known key"):
        load_torch(folder)
    change_json(folder / "config.json", path=None)
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3)}, folder / "model.safetensors")
    with pytest.raises(InvalidModel, match=r"weight: expected one for each of \d+ tokens, got \[3\]"):
        load_torch(folder)


def test_quantized_sparse_module_is_refused(saved: Saved, tmp_path: Path) -> None:
    folder = saved(*auto_encoder(tmp_path, hidden_dim=48, k=5))
    with pytest.raises(InvalidModel, match='expected no "int8" for a model of sparse vectors'):
        load_torch(folder, dtype="int8")


@pytest.mark.parametrize("options", [{}, {"max_active_dims": 9}])
def test_graph_with_auto_encoder_equals_sparse_encoder(saved: Saved, tmp_path: Path, options: dict[str, Any]) -> None:
    folder = saved(*auto_encoder(tmp_path, hidden_dim=48, k=5), **options)
    check(folder, graph=export_states(folder, tmp_path / "graph"))


@pytest.mark.parametrize(("strategy", "activation"), [("max", "relu"), ("sum", "log1p_relu")])
def test_graph_of_splade_equals_sparse_encoder(tmp_path: Path, strategy: str, activation: str) -> None:
    folder = save_splade(tmp_path / "saved", strategy, activation)
    graph = export_logits(folder, tmp_path / "graph")
    # A sum over the tokens of a text reaches 27, where float32 has steps of 2e-6.
    rtol = 1e-5 if strategy == "sum" else 0.0
    check(folder, graph=graph, rtol=rtol)
    for each in (folder, graph):
        change_json(each / "config_sentence_transformers.json", max_active_dims=6)
    check(folder, graph=graph, rtol=rtol)


def test_graph_of_splade_runs_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_splade(tmp_path / "saved")
    graph = export_logits(folder, tmp_path / "graph")
    monkeypatch.setattr(sparse_pooling, "_MAX_LOGITS", 1)
    check(folder, graph=graph)


def test_quantized_graph_of_sparse_vectors_is_refused(tmp_path: Path) -> None:
    graph = export_logits(save_splade(tmp_path / "saved"), tmp_path / "graph")
    with pytest.raises(InvalidModel, match="quantized: expected false for a model of sparse vectors, got int8"):
        load_onnx(graph, quantized=True, cache_dir=tmp_path / "cache")


def test_splade_beside_graph_of_states_serves_tensors(tmp_path: Path) -> None:
    folder = save_splade(tmp_path / "saved")
    model = load_onnx(export_states(folder, tmp_path / "graph"))
    assert model.spec.text is None
