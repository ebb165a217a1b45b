"""Vectors of queries and pages equal those of transformers' own processor and model of late interaction."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.engine.text_answers import max_sim
from frameworks.generation.types import MessageImage
from frameworks.pytorch.encoders.seeing.model import SeeingModel
from frameworks.tasks.architectures import architecture_of
from frameworks.tasks.types import TaskItem
from frameworks.types import TASK_OUTPUT, Array, TaskBatch
from tests.frameworks.models.loading import load_torch_model
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, image
from tests.support.models.text_files import change_json
from tests.support.models.vision.retrieval import PAGE_MAKERS, VECTOR_SIZE
from tests.support.models.vision.saving import load_processor

QUERIES = ("the red engine", "a cat", "Is there a dog in the second picture?")
TOLERANCE = 2e-5


def load(folder: Path, **entry: Any) -> SeeingModel:
    model: Any = load_torch_model(folder, dtype="f32", **entry)
    assert isinstance(model, SeeingModel)
    model.warm_up()
    return model


def rows_of(model: SeeingModel, items: list[TaskItem]) -> list[Array]:
    """Return the rows of items that share a run."""
    rows: Any = model.infer(TaskBatch(items))[TASK_OUTPUT]
    return list(rows)


def items_of(model: SeeingModel, files: tuple[bytes, ...] = IMAGES) -> tuple[list[TaskItem], list[TaskItem]]:
    prompts = model.content_prompts
    texts = [prompts.of_text(each, "text", True, None) for each in QUERIES]
    return texts, [prompts.of_image(MessageImage(each, 0, "image")) for each in files]


@pytest.fixture(params=sorted(PAGE_MAKERS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    PAGE_MAKERS[request.param](tmp_path)
    return tmp_path


def test_vectors_equal_reference_with_scores(folder: Path) -> None:
    model = load(folder)
    texts, images = items_of(model)
    queries = [rows_of(model, [item])[0] for item in texts]
    pages = [rows_of(model, [item])[0] for item in images]
    their_queries, their_pages, scores = _reference(folder)
    for own, theirs in zip([*queries, *pages], [*their_queries, *their_pages], strict=True):
        np.testing.assert_allclose(own, theirs, rtol=0, atol=TOLERANCE)
    own_scores = [max_sim(query, pages) for query in queries]
    np.testing.assert_allclose(own_scores, scores, rtol=0, atol=1e-3)
    assert model.spec.text is not None
    assert (model.spec.text.vectors, model.spec.embedding_size) == ("multi", VECTOR_SIZE)
    assert model.spec.unbatched_because is None


def test_rows_do_not_depend_on_neighbours(folder: Path) -> None:
    model = load(folder)
    _, same = items_of(model, tuple(image(number) for number in range(4)))
    assert len({item.shape for item in same}) == 1
    together = rows_of(model, same)
    for item, row in zip(same, together, strict=True):
        np.testing.assert_allclose(row, rows_of(model, [item])[0], rtol=0, atol=TOLERANCE)
    assert np.abs(together[0] - together[1]).max() > 100 * TOLERANCE, "the rows of different images differ"


def test_long_query_cut_before_suffix(tmp_path: Path) -> None:
    PAGE_MAKERS["colqwen2"](tmp_path)
    model = load(tmp_path)
    prompts, long = model.content_prompts, "the cat sat on the mat . " * 400
    item = prompts.of_text(long, "text[0]", True, None)
    short = prompts.of_text("the cat", "text[0]", True, None)
    ids, others = (each.value["input_ids"][0].tolist() for each in (item, short))
    assert (len(ids), item.num_tokens) == (256, 256)
    assert ids[-11:] == others[-11:]
    assert ids[: len(others) - 11] == others[:-11]
    with pytest.raises(InvalidInput, match=r"text\[3\]: expected at most 256 tokens"):
        prompts.of_text(long, "text[3]", False, None)


def test_large_page_refused_by_tokens(tmp_path: Path) -> None:
    PAGE_MAKERS["colqwen2"](tmp_path)
    change_json(tmp_path / "tokenizer_config.json", model_max_length=20)
    model: Any = load_torch_model(tmp_path, dtype="f32")
    with pytest.raises(InvalidInput, match="image: expected an image of at most 20 tokens"):
        model.content_prompts.of_image(MessageImage(image(0, (96, 96)), 0, "image"))


def test_int8_refused_by_name(tmp_path: Path) -> None:
    PAGE_MAKERS["colpali"](tmp_path)
    with pytest.raises(InvalidModel, match='dtype: expected no "int8" for a model that sees'):
        load_torch_model(tmp_path, dtype="int8")


def test_absent_processor_refused_by_name(tmp_path: Path) -> None:
    PAGE_MAKERS["colpali"](tmp_path)
    (tmp_path / "processor_config.json").unlink()
    with pytest.raises(InvalidModel, match="expected a processor"):
        load_torch_model(tmp_path, dtype="f32")


def _reference(folder: Path) -> tuple[list[Array], list[Array], Array]:
    """Return the vectors of queries and pages, and their scores, by transformers alone, without padding."""
    architecture: Any = getattr(transformers, architecture_of(folder))
    model, processor = architecture.from_pretrained(folder, dtype=torch.float32).eval(), load_processor(folder)
    images = [Image.open(io.BytesIO(each)).convert("RGB") for each in IMAGES]
    with torch.no_grad():
        queries = [model(**processor.process_queries(text=[each])).embeddings[0] for each in QUERIES]
        pages = [model(**processor.process_images(images=[each])).embeddings[0] for each in images]
    # Several pages at once are padded with zeros, which raise the scores of the shorter ones.
    scores = np.array([[processor.score_retrieval([query], [page]).item() for page in pages] for query in queries])
    return [each.numpy() for each in queries], [each.numpy() for each in pages], scores
