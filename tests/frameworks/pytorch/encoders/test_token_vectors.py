"""Token vectors of late interaction equal those of sentence-transformers' MultiVectorEncoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.late.tokenizer import LateTokenizer
from frameworks.text.pooling import normalize_rows
from frameworks.types import TEXT_OUTPUT, Array
from tests.frameworks.models.loading import load_torch
from tests.support.models.late_folders import QUERY_LENGTH, VECTOR_SIZE, save_pylate, save_stanford
from tests.support.models.text_files import TEXTS

QUERIES = [*TEXTS, "the engine of the turntable runs on steam and on the mat of the cat"]
DOCUMENTS = [*TEXTS, "the engine of steam runs on the turntable , " * 5]
TOLERANCE = 1e-5


def vectors_of(model: EncoderModel, queries: list[str], documents: list[str]) -> list[Array]:
    """Return the normalised vectors of one batch of queries and documents."""
    tokenizer = model.tokenizer
    assert isinstance(tokenizer, LateTokenizer)
    batch = tokenizer.read([*queries, *documents], True, len(queries))
    rows: Any = model.infer(batch)[TEXT_OUTPUT]
    kept = [np.ones(len(ids), bool) for ids in batch.token_ids[: len(queries)]]
    kept += [tokenizer.has_vector(ids) for ids in batch.token_ids[len(queries) :]]
    return [normalize_rows(row[keep]) for row, keep in zip(rows, kept, strict=True)]


@pytest.mark.parametrize(
    ("save", "settings"),
    [
        (save_pylate, {}),
        pytest.param(save_pylate, {"attend_to_expansion_tokens": True}, marks=pytest.mark.extended),
        pytest.param(save_pylate, {"do_query_expansion": False}, marks=pytest.mark.extended),
        (save_stanford, {}),
    ],
)
def test_vectors_equal_multi_vector_encoder(
    tmp_path: Path, save: Callable[..., Path], settings: dict[str, Any]
) -> None:
    folder = save(tmp_path, **settings)
    model = load_torch(folder, dtype="f32")
    model.warm_up()
    assert model.spec.text is not None
    assert (model.spec.text.vectors, model.spec.embedding_size) == ("multi", VECTOR_SIZE)
    assert model.spec.text.unpadded_because is None
    got = vectors_of(model, QUERIES, DOCUMENTS)
    expected = _reference(folder)
    assert len(got) == len(expected)
    for own, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=0, atol=TOLERANCE)
    if settings.get("do_query_expansion", True):
        assert {len(row) for row in got[: len(QUERIES)]} == {QUERY_LENGTH}


def test_missing_projection_refused_by_name(tmp_path: Path) -> None:
    folder = save_pylate(tmp_path)
    (folder / "1_Dense" / "model.safetensors").unlink()
    with pytest.raises(InvalidModel, match="safetensors: absent; save the module"):
        load_torch(folder)


def _reference(folder: Path) -> list[Array]:
    from sentence_transformers import MultiVectorEncoder

    model: Any = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
    queries = model.encode_query(QUERIES, show_progress_bar=False, convert_to_numpy=True)
    documents = model.encode_document(DOCUMENTS, show_progress_bar=False, convert_to_numpy=True)
    return [np.asarray(row) for row in (*queries, *documents)]
