"""Every family of image classifiers of transformers equals its own pipeline, alone and batched with other images."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.images.processor import Array, ImageProcessor
from frameworks.images.reference import ReferenceProcessor
from frameworks.pytorch.encoders.images.families import (
    CLASSIFIERS,
    EMBEDDERS,
    LIMITED_CLASSIFIERS,
    POOLINGS,
    UNSERVED_CLASSIFIERS,
)
from frameworks.text.pooling import normalize_rows, scores
from frameworks.types import TensorBatch
from tests.frameworks.pytorch.test_image_models import served
from tests.support.models.image_families import LABELS, classes_of, noise, processor_of, save_classifier, save_embedder
from tests.support.models.text_files import change_json

_TOLERANCE = 1e-4
_FIRST_TIER = ("beit", "imagegpt", "siglip2", "resnet")
_CLASSES = [
    pytest.param(family, name, id=name, marks=() if family in _FIRST_TIER else pytest.mark.extended)
    for family in CLASSIFIERS
    for name in classes_of(family)
]


def prepared(model: Any, images: list[Any]) -> Array:
    """Return the rows of images."""
    processor = model.image_processor
    rows: Array = processor.empty(len(images))
    for image, row in zip(images, rows, strict=True):
        processor.prepare(image, "image", row)
    return rows


def expected_scores(folder: Path, model: Any, family: str, images: list[Any]) -> Array:
    """Return the scores of transformers, each image alone, float [images, labels]."""
    if family == "pp_lcnet":
        # The pipeline of transformers does not find its logits.
        with torch.inference_mode():
            inputs = processor_of(family)(images=images, return_tensors="pt")
            return np.asarray(model(**inputs).last_hidden_state.softmax(-1))
    pipeline = transformers.pipeline("image-classification", model=str(folder))
    answers = [{each["label"]: each["score"] for each in pipeline(image)} for image in images]
    return np.array([[answer[label] for label in LABELS] for answer in answers])


@pytest.mark.parametrize(("family", "name"), _CLASSES)
def test_classifier_equals_pipeline_alone_and_batched(family: str, name: str, tmp_path: Path) -> None:
    original = save_classifier(tmp_path, family, name)
    images = list(noise(11))[8:]
    expected = expected_scores(tmp_path, original, family, images)
    assert np.ptp(expected, axis=0).max() > 0.01, "the images do not differ"
    model = served(tmp_path)
    assert model.spec.image is not None
    assert model.spec.image.labels == LABELS
    rows = prepared(model, images)
    for part in ([0], [1], [2], [0, 1, 2]):
        logits = model.infer(TensorBatch({"pixel_values": rows[part]}))["logits"]
        assert isinstance(logits, np.ndarray)
        np.testing.assert_allclose(scores(logits, False), expected[part], atol=_TOLERANCE)


_EMBEDDERS = [
    pytest.param(name, marks=() if name in ("regnet", "vit_msn") else pytest.mark.extended) for name in EMBEDDERS
]


def expected_embeddings(model: Any, family: str, images: list[Any]) -> Array:
    """Return the embeddings of transformers, float [images, size]."""
    with torch.inference_mode():
        output = model(**processor_of(family)(images=images, return_tensors="pt"))
    pooled = output.get("pooler_output")
    if pooled is None:
        states = output.last_hidden_state
        pooled = {"cls": lambda: states[:, 0], "mean": lambda: states.mean(1), "area": lambda: states.mean((2, 3))}[
            POOLINGS[family]
        ]()
    return np.asarray(pooled.flatten(1))


@pytest.mark.parametrize("family", _EMBEDDERS)
def test_embedder_equals_transformers(family: str, tmp_path: Path) -> None:
    original = save_embedder(tmp_path, family)
    images = list(noise(11))[8:]
    expected = expected_embeddings(original, family, images)
    assert np.ptp(expected, axis=0).max() > 0.01, "the images do not differ"
    model = served(tmp_path)
    rows = prepared(model, images)
    for part in ([0], [1], [2], [0, 1, 2]):
        vectors = model.infer(TensorBatch({"pixel_values": rows[part]}))["embeddings"]
        assert isinstance(vectors, np.ndarray)
        np.testing.assert_allclose(normalize_rows(vectors), normalize_rows(expected[part]), atol=_TOLERANCE)


def test_head_of_another_task_is_no_embedding(tmp_path: Path) -> None:
    save_embedder(tmp_path, "beit")
    change_json(tmp_path / "config.json", architectures=["BeitForMaskedImageModeling"])
    with pytest.raises(InvalidModel, match=r"expected a class that ends in .* got BeitForMaskedImageModeling"):
        served(tmp_path)


def test_families_are_those_of_transformers() -> None:
    assert {*CLASSIFIERS, *UNSERVED_CLASSIFIERS} == set(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)
    assert not set(CLASSIFIERS) & set(UNSERVED_CLASSIFIERS)


def test_manual_lists_every_family() -> None:
    page = Path("docs/images.md").read_text("utf-8")
    for families in (CLASSIFIERS, EMBEDDERS):
        assert ", ".join(f"`{family}`" for family in families) + "." in page
    for family, reason in (LIMITED_CLASSIFIERS | UNSERVED_CLASSIFIERS).items():
        assert f"| `{family}` | {reason} |" in page


@pytest.mark.parametrize("family", UNSERVED_CLASSIFIERS)
def test_unserved_family_refused_by_name(family: str, tmp_path: Path) -> None:
    save_classifier(tmp_path, "vit")
    change_json(tmp_path / "config.json", model_type=family)
    with pytest.raises(InvalidModel, match=f"is not served: {UNSERVED_CLASSIFIERS[family]}"):
        served(tmp_path)


def test_processor_of_varying_size_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path, "textnet")
    change_json(tmp_path / "preprocessor_config.json", do_center_crop=False)
    with pytest.raises(InvalidModel, match="expected one that prepares all images in one size, got TextNetImage"):
        served(tmp_path)


def test_processor_of_huge_images_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path, "beit")
    change_json(tmp_path / "preprocessor_config.json", size={"height": 100_000, "width": 8})
    with pytest.raises(InvalidModel, match="size: expected integers from 1 to 4096, got"):
        served(tmp_path)


def test_own_processor_stays_where_it_knows_class(tmp_path: Path) -> None:
    save_classifier(tmp_path, "vit")
    assert type(served(tmp_path).image_processor) is ImageProcessor


def test_extreme_proportions_refused_before_resizing() -> None:
    processor = ReferenceProcessor(processor_of("levit"), "file")
    row = processor.empty(1)[0]
    with pytest.raises(InvalidInput, match="at most 50000000 pixels after resizing, got an image of 32768 x 1"):
        processor.prepare(Image.new("RGB", (32768, 1)), "image", row)


def test_processor_in_threads_equals_one_thread() -> None:
    processor = ReferenceProcessor(processor_of("siglip2"), "file")
    images = list(noise(16))
    rows, alone = processor.empty(16), processor.empty(16)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: processor.prepare(images[number], "image", rows[number]), range(16)))
    for image, row in zip(images, alone, strict=True):
        processor.prepare(image, "image", row)
    np.testing.assert_array_equal(rows, alone)
