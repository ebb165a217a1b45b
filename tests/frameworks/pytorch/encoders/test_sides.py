"""Models with a Router, against encode_query and encode_document of sentence-transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidModel
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.texts import TextService
from frameworks.engine.threads import TokenizerThreads
from frameworks.pytorch.encoders.sides import SidedModel
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.types import TEXT_OUTPUT, Array, EmbedAnswer, PairRequest, ScoreAnswer, SparseAnswer, TextRequest
from tests.frameworks.models.loading import load_onnx, load_torch_model
from tests.support.loops import in_loop
from tests.support.models.onnx_encoders import encoder
from tests.support.models.onnx_graphs import save
from tests.support.models.sided_folders import save_dense, save_sparse
from tests.support.models.text_files import TEXTS, change_json, write_json, write_tokenizer

RAGGED = [*TEXTS, "the engine of steam runs on . " * 20]
PAIRS = [("the cat", "sat on the mat"), ("steam", "the cat"), ("the cat", "steam")]


def service_of(model: Any) -> tuple[TextService, Run]:
    async def submit(tokens: Any, *_: Any) -> Any:
        return model.infer(tokens)

    run = Run(Permit(RequestLimit("the server", None, None)), Timings())
    return TextService(model, submit, True, TokenizerThreads()), run


def dense(answer: Any, size: int) -> Array:
    if isinstance(answer, EmbedAnswer):
        return answer.embeddings
    assert isinstance(answer, SparseAnswer)
    rows = np.zeros((len(answer.indices), size), np.float32)
    for row, indices, values in zip(rows, answer.indices, answer.values, strict=True):
        row[indices] = values
    return rows


@pytest.mark.parametrize("make", [save_dense, save_sparse])
@in_loop
async def test_sides_equal_sentence_transformers(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    reference: Any = make(tmp_path)
    model = load_torch_model(tmp_path / "saved", dtype="f32")
    model.warm_up()
    assert isinstance(model, SidedModel)
    assert model.spec.text is not None
    service, run = service_of(model)
    options = {} if make is save_dense else {"convert_to_sparse_tensor": False}
    sides = ((True, reference.encode_query), (False, reference.encode_document))
    for are_queries, encode in sides:
        wanted = np.asarray(encode(RAGGED, batch_size=1, show_progress_bar=False, **options))
        for texts, rows in ((RAGGED, wanted), *(([each], row[None]) for each, row in zip(RAGGED, wanted, strict=True))):
            request = TextRequest(texts, are_queries=are_queries, vectors=("dense", "sparse"))
            found = dense(await service.answer(run, request), wanted.shape[1])
            np.testing.assert_allclose(found, rows, rtol=0, atol=1e-5)
    one, other = (
        np.asarray(encode([pair[side] for pair in PAIRS], show_progress_bar=False, **options))
        for side, (_, encode) in enumerate(sides)
    )
    answer = await service.score(run, PairRequest(PAIRS))
    assert isinstance(answer, ScoreAnswer)
    np.testing.assert_allclose(answer.scores, (one * other).sum(axis=1), rtol=0, atol=1e-5)


@in_loop
async def test_token_ids_have_sides(tmp_path: Path) -> None:
    save_dense(tmp_path)
    model = load_torch_model(tmp_path / "saved", dtype="f32")
    service, run = service_of(model)
    for are_queries in (True, False):
        tokenizer = model.tokenizer if not are_queries else getattr(model.tokenizer, "queries", None)
        assert tokenizer is not None
        given = TextRequest([], token_ids=tokenizer.tokenize(RAGGED[:2], True, prompt=""), are_queries=are_queries)
        texts = TextRequest(RAGGED[:2], prompt="", are_queries=are_queries)
        found = [dense(await service.answer(run, each), 5) for each in (given, texts)]
        np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)


def test_mixed_batch_keeps_order_of_texts(tmp_path: Path) -> None:
    save_dense(tmp_path)
    model = load_torch_model(tmp_path / "saved", dtype="f32")
    from frameworks.types import TokenBatch

    ids, sides = [[5, 6], [7], [8, 9, 10], [11]], [True, False, True, False]
    together = np.asarray(model.infer(TokenBatch(ids, are_queries=sides))[TEXT_OUTPUT])
    for row, own, side in zip(together, ids, sides, strict=True):
        alone = np.asarray(model.infer(TokenBatch([own], are_queries=[side]))[TEXT_OUTPUT])
        np.testing.assert_allclose(row, alone[0], rtol=0, atol=1e-6)


def _without_query(content: Any) -> None:
    content["structure"]["question"] = content["structure"].pop("query")


def _with_wrong_size(content: Any) -> None:
    content["structure"]["query"].pop()
    content["structure"]["document"].pop()


def _with_other_folder(content: Any) -> None:
    content["types"]["../secret"] = "sentence_transformers.models.Dense"


def _with_unknown_module(content: Any) -> None:
    content["structure"]["query"].append("other")


def _with_mapping_of_nothing(content: Any) -> None:
    content["parameters"]["route_mappings"] = {"('query', 'text')": "absent"}


def _with_code(content: Any) -> None:
    content["parameters"]["route_mappings"] = {"__import__('os').abort()": "query"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_query, r"router_config\.json: structure: expected routes for query and document, got document, q"),
        (_with_wrong_size, "expected"),
        (_with_other_folder, "types: expected folders within the model's own"),
        (_with_unknown_module, "structure: query: expected names of types"),
        (_with_mapping_of_nothing, "route_mappings: expected a task, a modality and a route"),
        (_with_code, "route_mappings: expected a task, a modality and a route"),
    ],
)
def test_wrong_router_is_refused(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    save_dense(tmp_path)
    file = tmp_path / "saved" / "router_config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    write_json(file, content)
    with pytest.raises(InvalidModel, match=message):
        load_torch_model(tmp_path / "saved")


def test_mapped_routes_are_resolved(tmp_path: Path) -> None:
    """Older versions have the file of Asym under another name."""
    save_dense(tmp_path)
    file = tmp_path / "saved" / "router_config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    _without_query(content)
    content["parameters"]["route_mappings"] = {"('query', None)": "question", "(None, ('text', 'image'))": "document"}
    file.unlink()
    write_json(file.with_name("config.json"), content)
    assert isinstance(load_torch_model(tmp_path / "saved"), SidedModel)
    with pytest.raises(InvalidModel, match='expected no "int8" for a model with a Router'):
        load_torch_model(tmp_path / "saved", dtype="int8")


def test_graph_with_router_is_refused(tmp_path: Path) -> None:
    save(encoder(), tmp_path)
    write_tokenizer(tmp_path)
    write_json(tmp_path / "modules.json", [{"path": "", "type": "sentence_transformers.models.Router"}])
    change_json(tmp_path / "router_config.json", types={}, structure={})
    with pytest.raises(InvalidModel, match="module Router is not served"):
        load_onnx(tmp_path)
