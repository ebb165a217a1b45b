"""Masks of a grid against transformers' pipeline, those of points and boxes against its processor and model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.pytorch.tasks import mask_generation, masks
from frameworks.pytorch.tasks.graphs import with_task
from frameworks.pytorch.tasks.masks import RunLengths, drop_overlapping
from frameworks.pytorch.tasks.model import TaskModel
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.table import TASKS
from tests.frameworks.models.loading import load_torch_model
from tests.frameworks.pytorch.tasks.test_task_models import run_together
from tests.support.models.tasks import make, samples
from tests.support.models.tasks.inputs import png
from tests.support.models.tasks.masks import check_masks, mask_pipeline, masks_of_objects, pixels_of, plain_nms
from tests.support.models.text_files import write_json

FAMILIES = ("sam", "sam_hq")
ALL = {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.0, "crops_nms_thresh": 1.0}
GRIDS: tuple[dict[str, Any], ...] = (
    {"points_per_crop": 3, **ALL},
    {"points_per_crop": 3, **ALL, "crops_n_layers": 1, "crop_overlap_ratio": 0.5},
    {
        "points_per_crop": 4,
        "points_per_batch": 5,
        "pred_iou_thresh": 0.3,
        "stability_score_thresh": 0.2,
        "stability_score_offset": 0.5,
        "mask_threshold": 0.2,
        "crops_nms_thresh": 0.8,
        "output_rle_mask": True,
        "output_bboxes_mask": True,
    },
    {},
)
PROMPTS: tuple[dict[str, Any], ...] = (
    {"input_points": [[[10, 12]]]},
    {"input_points": [[[10, 12], [3.5, 4]], [[20, 30], [0, 0]]], "input_labels": [[1, 0], [1, -10]]},
    {"input_boxes": [[1, 2, 30, 35], [0, 0, 12.5, 20]], "multimask_output": False},
    {"input_points": [[[10, 12]]], "input_boxes": [[1, 2, 30, 35]], "mask_threshold": 0.3},
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("masks")
    return {family: make("mask-generation", family, folder / family) for family in FAMILIES}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, TaskModel]:
    found: dict[str, TaskModel] = {}
    for family, folder in folders.items():
        model = load_torch_model(folder)
        assert isinstance(model, TaskModel)
        model.warm_up()
        found[family] = model
    return found


def answer(model: TaskModel, picture: Image.Image, given: dict[str, Any]) -> dict[str, Any]:
    assert model.pipeline is not None
    parameters = check_parameters(TASKS["mask-generation"], given)
    items = model.pipeline.prepare({"image": png(picture)}, parameters)
    [outputs] = run_together(model, [items])
    found: dict[str, Any] = model.pipeline.finish(outputs, parameters)
    return found


@pytest.mark.parametrize("given", GRIDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_masks_of_grid_equal_pipeline(
    models: dict[str, TaskModel], folders: dict[str, Path], family: str, given: dict[str, Any]
) -> None:
    reference = mask_pipeline(folders[family])
    for picture in samples("mask-generation"):
        check_masks(answer(models[family], picture, given), reference(picture, **given))


def test_grid_of_samples_has_several_masks(models: dict[str, TaskModel]) -> None:
    found = [answer(models["sam"], picture, GRIDS[1]) for picture in samples("mask-generation")]
    assert min(len(each["masks"]) for each in found) > 3


@pytest.mark.parametrize("given", PROMPTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_masks_of_objects_equal_model(
    models: dict[str, TaskModel], folders: dict[str, Path], family: str, given: dict[str, Any]
) -> None:
    around = {name: [value] if name.startswith("input_") else value for name, value in given.items()}
    for picture in samples("mask-generation"):
        pixels, scores = masks_of_objects(folders[family], picture, **given)
        for form in (given, around):
            found = answer(models[family], picture, form)
            assert found.keys() == {"masks", "scores"}
            np.testing.assert_array_equal([[pixels_of(mask) for mask in own] for own in found["masks"]], pixels)
            np.testing.assert_allclose(found["scores"], scores, atol=1e-5)


@pytest.mark.parametrize("given", [GRIDS[1], PROMPTS[1]])
def test_small_runs_have_equal_masks(
    models: dict[str, TaskModel], monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    model, picture = models["sam"], samples("mask-generation")[1]
    expected = answer(model, picture, given)
    monkeypatch.setattr(mask_generation, "_CPU_RUN_BYTES", 1)
    assert model.pipeline is not None
    items = model.pipeline.prepare({"image": png(picture)}, {**given})
    assert len(items) == (5 * 9 if "points_per_crop" in given else 2)
    assert {item.shape for item in items} == {None}
    found = answer(model, picture, given)
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-4)
    for own, other in zip(np.ravel(found["masks"]), np.ravel(expected["masks"]), strict=True):
        # Runs of other sizes add in another order.
        assert (pixels_of(own) == pixels_of(other)).mean() > 0.999


def test_image_is_encoded_once_for_crop(models: dict[str, TaskModel], monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = models["sam"], {**GRIDS[1], "points_per_batch": 2}
    assert model.pipeline is not None
    module: Any = model._model
    encode, calls = module.get_image_embeddings, 0

    def counted(pixels: torch.Tensor) -> Any:
        nonlocal calls
        calls += 1
        return encode(pixels)

    monkeypatch.setattr(module, "get_image_embeddings", counted)
    items = model.pipeline.prepare({"image": png(samples("mask-generation")[0])}, given)
    assert calls == 0, "an input is prepared on another thread than that of the model"
    pixels = {item.value[0]["crop"] for item in items}
    assert sum(item.nbytes for item in items) > sum(each._pixels.nbytes for each in pixels)
    run_together(model, [items])
    assert calls == len(pixels) == 5
    assert all(each._encoded == {} for each in pixels), "the encoder's outputs stay in memory"
    # The model may run a row again, as after an error of the device.
    run_together(model, [items[:1]])


def test_boxes_are_dropped_as_by_plain_loop() -> None:
    rng = np.random.default_rng(5)
    for number in (0, 1, 2, 60, 200):
        corners = np.sort(rng.integers(0, 30, (number, 2, 2)), axis=1)
        boxes = torch.from_numpy(corners.reshape(number, 4))
        scores = torch.from_numpy(rng.integers(0, 40, number) / 40).float()
        for threshold in (0.0, 0.3, 0.7, 1.0):
            expected = plain_nms(boxes.tolist(), scores.tolist(), threshold)
            assert drop_overlapping(boxes, scores, threshold, 1).tolist() == expected


def test_run_lengths_have_pixels_of_mask() -> None:
    for mask, counts in (([[0, 1, 1], [0, 0, 1]], [2, 1, 1, 2]), ([[1, 1]], [0, 2]), ([[0], [0]], [2])):
        height, width = len(mask), len(mask[0])
        found = RunLengths.of({"size": [height, width], "counts": counts})
        np.testing.assert_array_equal(pixels_of(found.png()), np.array(mask, bool))
        assert found.as_mapping() == {"size": [height, width], "counts": counts}


@pytest.mark.parametrize(("name", "most"), [("MAX_CANDIDATES", 2), ("MAX_RUNS", 5), ("MAX_MASKS", 1)])
def test_too_many_masks_are_refused(
    models: dict[str, TaskModel], monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(masks, name, most)
    with pytest.raises(InvalidInput, match=r"parameters\.pred_iou_thresh: expected at most .*; raise it"):
        answer(models["sam"], samples("mask-generation")[1], {**GRIDS[1], "points_per_batch": 4})


def test_runs_end_after_too_many_masks(models: dict[str, TaskModel], monkeypatch: pytest.MonkeyPatch) -> None:
    model = models["sam"]
    monkeypatch.setattr(masks, "MAX_CANDIDATES", 2)
    assert model.pipeline is not None
    items = model.pipeline.prepare({"image": png(samples("mask-generation")[1])}, {**GRIDS[1], "points_per_batch": 4})
    [outputs] = run_together(model, [items])
    assert sum(bool(each["masks"]) for each in outputs) < len(items) / 2


@pytest.mark.parametrize("size", [(1, 1), (2, 60), (90, 3)])
def test_small_pictures_equal_pipeline(
    models: dict[str, TaskModel], folders: dict[str, Path], size: tuple[int, int]
) -> None:
    picture, given = Image.effect_noise(size, 60).convert("RGB"), {"points_per_crop": 2, **ALL}
    check_masks(answer(models["sam"], picture, given), mask_pipeline(folders["sam"])(picture, **given))
    found = answer(models["sam"], picture, {"input_points": [[[0, 1]]]})
    assert pixels_of(found["masks"][0][0]).shape == size[::-1]


def test_graph_of_masks_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["SamModel"], "model_type": "sam"})
    with pytest.raises(InvalidModel, match="weights of transformers for mask-generation, got a graph"):
        with_task([], OnnxModelEntry(name="m", path=tmp_path), tmp_path)
