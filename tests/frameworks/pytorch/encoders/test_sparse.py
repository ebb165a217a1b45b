"""Sparse vectors equal those of sentence-transformers' SparseEncoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules import sparse_pooling
from frameworks.types import TEXT_OUTPUT, TokenBatch
from tests.frameworks.models.loading import load_torch
from tests.support.models.sparse_folders import save_splade
from tests.support.models.text_files import TEXTS, change_json

ALL = [*TEXTS, "the engine of steam runs on the turntable , " * 5]
TOLERANCE = 1e-5


@pytest.mark.parametrize(
    ("strategy", "activation", "kind"),
    [
        ("max", "relu", "MLMTransformer"),
        ("sum", "log1p_relu", "Transformer"),
        pytest.param("max", "log1p_relu", "MLMTransformer", marks=pytest.mark.extended),
        pytest.param("sum", "relu", "MLMTransformer", marks=pytest.mark.extended),
    ],
)
def test_vectors_equal_sparse_encoder(tmp_path: Path, strategy: str, activation: str, kind: str) -> None:
    from sentence_transformers import SparseEncoder

    folder = save_splade(tmp_path, strategy, activation, kind)
    model = load_torch(folder, dtype="f32")
    model.warm_up()
    assert model.spec.text is not None
    assert (model.spec.text.vectors, model.spec.text.unpadded_because) == ("sparse", None)
    assert model.tokenizer is not None
    token_ids = model.tokenizer.tokenize(ALL, truncate=True)
    reference: Any = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    expected = reference.encode(ALL, convert_to_sparse_tensor=False, show_progress_bar=False)
    batches = [TokenBatch(token_ids), *(TokenBatch([ids]) for ids in token_ids)]
    rows = [row for batch in batches for row in np.asarray(model.infer(batch)[TEXT_OUTPUT])]
    for (indices, values), theirs in zip(rows, [*expected, *expected], strict=True):
        dense = np.zeros(len(theirs), np.float32)
        dense[indices] = values
        assert (values > 0).all()
        np.testing.assert_allclose(dense, theirs.numpy(), rtol=1e-5, atol=TOLERANCE)


def test_unknown_strategy_refused_by_name(tmp_path: Path) -> None:
    folder = save_splade(tmp_path)
    change_json(folder / "1_SpladePooling" / "config.json", pooling_strategy="mean")
    with pytest.raises(InvalidModel, match="pooling_strategy: expected max or sum, got mean"):
        load_torch(folder)


def test_batch_in_parts_gives_equal_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_torch(save_splade(tmp_path), dtype="f32")
    model.warm_up()
    assert model.tokenizer is not None
    batch = TokenBatch(model.tokenizer.tokenize(ALL, truncate=True))
    whole = np.asarray(model.infer(batch)[TEXT_OUTPUT])
    monkeypatch.setattr(sparse_pooling, "_MAX_LOGITS", 1)
    for (indices, values), (others, theirs) in zip(np.asarray(model.infer(batch)[TEXT_OUTPUT]), whole, strict=True):
        np.testing.assert_array_equal(indices, others)
        np.testing.assert_allclose(values, theirs, rtol=0, atol=TOLERANCE)
