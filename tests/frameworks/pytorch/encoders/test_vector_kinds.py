"""Three kinds of vectors of one folder, against plain transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.engine.texts import TextService
from frameworks.pytorch.encoders.vector_kinds import CombinedModel
from frameworks.scheduling.merging.rows import merge
from frameworks.types import (
    TEXT_OUTPUT,
    CombinedAnswer,
    EmbedAnswer,
    MultiVectorAnswer,
    PairRequest,
    SparseAnswer,
    TextRequest,
    TokenBatch,
    Vectors,
)
from tests.frameworks.models.loading import load_torch_model
from tests.frameworks.pytorch.encoders.test_sides import service_of
from tests.support.loops import in_loop
from tests.support.models.combined_folders import Combined, combined_vectors, save_combined
from tests.support.models.text_files import TEXTS

RAGGED = [*TEXTS, "the engine of steam runs on . " * 20]
ALL: tuple[Vectors, ...] = ("dense", "sparse", "multi")


def load(folder: Path, **options: Any) -> Any:
    model = load_torch_model(folder, **({"dtype": "f32", "allow_pickled_weights": True} | options))
    model.warm_up()
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_combined(tmp_path_factory.mktemp("combined"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load(folder)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Combined]:
    found = [combined_vectors(folder, text) for text in RAGGED]
    # Rounding cannot decide which tokens have a weight.
    assert min(weight for each in found for weight in each.sparse.values()) > 1e-3
    return found


def check(answer: Any, expected: list[Combined]) -> None:
    """Compare an answer of one kind, or of several."""
    if isinstance(answer, CombinedAnswer):
        assert len(answer.answers) > 1
        for each in answer.answers:
            check(each, expected)
    elif isinstance(answer, EmbedAnswer):
        np.testing.assert_allclose(answer.embeddings, [each.dense for each in expected], rtol=0, atol=1e-5)
    elif isinstance(answer, SparseAnswer):
        for indices, values, wanted in zip(answer.indices, answer.values, expected, strict=True):
            assert indices.tolist() == sorted(wanted.sparse)
            np.testing.assert_allclose(values, [wanted.sparse[i] for i in indices.tolist()], rtol=0, atol=1e-5)
    else:
        assert isinstance(answer, MultiVectorAnswer)
        for vectors, wanted in zip(answer.vectors, expected, strict=True):
            np.testing.assert_allclose(vectors, wanted.multi, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kinds", [(), ("dense",), ("sparse",), ("multi",), ("multi", "dense"), ALL])
@in_loop
async def test_vectors_equal_those_of_transformers(
    model: Any, expected: list[Combined], kinds: tuple[Vectors, ...]
) -> None:
    assert any(each.sparse for each in expected)
    service, run = service_of(model)
    answer = await service.answer(run, TextRequest(RAGGED, kinds=kinds))
    check(answer, expected)
    for text, wanted in zip(RAGGED, expected, strict=True):
        check(await service.answer(run, TextRequest([text], kinds=kinds)), [wanted])


@in_loop
async def test_requests_for_other_kinds_share_batch(model: Any, expected: list[Combined]) -> None:
    sent: list[TokenBatch] = []

    async def submit(tokens: Any, *_: Any) -> Any:
        sent.append(tokens)
        return model.infer(tokens)

    service, run = service_of(model)
    own = TextService(model, submit, True, service._threads)
    asked: list[tuple[Vectors, ...]] = [("sparse",), (), ALL, ("multi",)]
    for text, kinds in zip(RAGGED, asked, strict=False):
        await own.answer(run, TextRequest([text], kinds=kinds))
    merged = merge(sent)
    assert isinstance(merged, TokenBatch)
    rows = model.infer(merged)[TEXT_OUTPUT]
    for row, kinds, wanted in zip(rows, asked, expected, strict=False):
        assert row.keys() == set(kinds or ("dense",))
        if "multi" in row:
            assert row["multi"].shape == wanted.multi.shape
            assert row["multi"].base is None


@in_loop
async def test_options_belong_to_their_kinds(model: Any, expected: list[Combined]) -> None:
    service, run = service_of(model)
    answer = await service.answer(run, TextRequest(RAGGED, kinds=ALL, top_k=1, min_value=0.01, normalize=False))
    assert isinstance(answer, CombinedAnswer)
    assert answer.dense is not None
    assert answer.sparse is not None
    assert answer.multi is not None
    assert not np.allclose(np.linalg.norm(answer.dense.embeddings, axis=1), 1, atol=1e-3)
    assert not np.allclose(np.linalg.norm(answer.multi.vectors[0], axis=1), 1, atol=1e-3)
    for values, wanted in zip(answer.sparse.values, expected, strict=True):
        largest = max(wanted.sparse.values(), default=0.0)
        assert values.tolist() == pytest.approx([largest] if largest >= 0.01 else [], abs=1e-5)


@in_loop
async def test_request_without_texts_has_each_kind(model: Any) -> None:
    service, run = service_of(model)
    answer = await service.answer(run, TextRequest([], kinds=("dense", "sparse")))
    assert isinstance(answer, CombinedAnswer)
    assert answer.sparse == SparseAnswer([], [], 0)
    assert answer.multi is None


@in_loop
async def test_pairs_are_scored_by_dense_vectors(model: Any, expected: list[Combined]) -> None:
    service, run = service_of(model)
    answer: Any = await service.score(run, PairRequest([(RAGGED[0], RAGGED[1])]))
    assert answer.scores == pytest.approx([float(expected[0].dense @ expected[1].dense)], abs=1e-5)


@in_loop
async def test_pickles_are_read_only_where_allowed(folder: Path) -> None:
    model = load(folder, allow_pickled_weights=False)
    assert not isinstance(model, CombinedModel)
    service, run = service_of(model)
    with pytest.raises(InvalidInput, match="vectors: expected kinds out of dense, got sparse"):
        await service.answer(run, TextRequest(["a"], kinds=("sparse",)))


def test_one_head_is_enough(tmp_path: Path) -> None:
    model = load(save_combined(tmp_path, names=("sparse_linear.pt",)))
    assert model.spec.text is not None
    assert model.spec.text.kinds == ("dense", "sparse")


def test_memory_counts_heads(folder: Path) -> None:
    # A measurement may choose kernels whose weights have other sizes.
    model, plain = load(folder, kernels="plain"), load(folder, kernels="plain", allow_pickled_weights=False)
    heads = sum((folder / name).stat().st_size for name in ("sparse_linear.pt", "colbert_linear.pt"))
    assert 0 < model.spec.memory_bytes - plain.spec.memory_bytes <= heads


@pytest.mark.parametrize(
    ("name", "tensors", "message"),
    [
        ("sparse_linear.pt", {"weight": torch.zeros(2, 16)}, r"sparse_linear\.pt: weight: expected \[1, "),
        ("colbert_linear.pt", {"weight": torch.zeros(4, 3)}, r"colbert_linear\.pt: weight: expected \[size, "),
        ("colbert_linear.pt", {"other": torch.zeros(4)}, r"colbert_linear\.pt: weight: expected .*got \[\]"),
        ("sparse_linear.pt", [1], "expected tensors by name, got list"),
    ],
)
def test_wrong_head_is_refused_by_name(tmp_path: Path, name: str, tensors: Any, message: str) -> None:
    torch.save(tensors, save_combined(tmp_path) / name)
    with pytest.raises(InvalidModel, match=message):
        load(tmp_path)
