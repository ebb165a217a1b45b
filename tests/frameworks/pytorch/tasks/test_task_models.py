"""Models of tasks against transformers' own pipelines, alone and in batches of several requests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.media.audio import decode_audio
from frameworks.pytorch.tasks.model import TaskModel
from frameworks.tasks.architectures import NOT_SERVED
from frameworks.tasks.types import TaskItem
from frameworks.types import TASK_OUTPUT, TaskBatch, TensorBatch
from tests.frameworks.models.loading import load_torch_model
from tests.support.images import encoded, photo
from tests.support.media import encoded_video, moving_square, tone, wav
from tests.support.models.task_folders import save_task_model
from tests.support.models.text_files import write_json

TOLERANCE = 1e-4
"""Of scores, and of sizes of boxes in pixels before they are rounded: a batch adds in another order."""
TEXTS = ["the cat sat on the mat", "steam engine", "a cat on a cold engine sat on the mat in the steam"]
PICTURES = [photo(40, 60, 1), photo(64, 48, 2), photo(40, 60, 3)]
LABELS = {"candidate_labels": ["steam", "the mat", "cat"]}
TEXT_TASKS = ("token-classification", "fill-mask", "question-answering", "zero-shot-classification")
IMAGE_TASKS = (
    "object-detection",
    "image-segmentation",
    "depth-estimation",
    "zero-shot-image-classification",
    "zero-shot-object-detection",
)
OTHER_TASKS = (
    "document-question-answering",
    "table-question-answering",
    "keypoint-matching",
    "audio-classification",
    "video-classification",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


def served(folders: Path, task: str) -> TaskModel:
    folder = folders / task
    if not folder.exists():
        save_task_model(folder, task)
    model = load_torch_model(folder, task=task)
    assert isinstance(model, TaskModel)
    model.warm_up()
    return model


def requests_of(task: str) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Return inputs, parameters, and what the reference reads."""
    if task == "question-answering":
        asked = [{"question": "what sat", "context": text} for text in TEXTS]
        return [(each, {}, dict(each)) for each in asked]
    parameters: dict[str, Any] = dict(LABELS) if task.startswith("zero-shot") else {}
    if task == "document-question-answering":
        pairs = [[[word, [50 * i, 100, 50 * i + 40, 140]] for i, word in enumerate(text.split())] for text in TEXTS]
        documents: list[dict[str, Any]] = [{"question": "what sat", "word_boxes": words} for words in pairs]
        return [(each, {}, {"image": None, **each}) for each in documents]
    if task == "table-question-answering":
        table = {"cat": ["mat", "engine"], "steam": ["on", "cold"]}
        questions = [{"query": "what sat on the mat", "table": table}, {"query": "cat", "table": table}]
        return [(each, {}, each) for each in questions]
    if task == "audio-classification":
        sounds = [wav(tone(int(16_000 * seconds))) for seconds in (0.3, 0.5, 0.3)]
        return [({"audio": each}, {}, decode_audio(each, 16_000, "audio")) for each in sounds]
    if task == "video-classification":
        videos = [encoded_video(moving_square(12)), encoded_video(moving_square(8, 64, 48))]
        return [({"video": each}, {}, each) for each in videos]
    if task == "keypoint-matching":
        files = [encoded(each, "PNG") for each in PICTURES[:2]]
        return [({"image": files}, {}, [Image.fromarray(each) for each in PICTURES[:2]])]
    if task in TEXT_TASKS:
        texts = [f"{text} [MASK]" for text in TEXTS] if task == "fill-mask" else TEXTS
        return [({"text": text}, parameters, text) for text in texts]
    if task.endswith("object-detection"):
        parameters["threshold"] = 0.0
    return [({"image": encoded(each, "PNG")}, parameters, Image.fromarray(each)) for each in PICTURES]


def references_of(task: str, folder: Path, requests: list[tuple[dict[str, Any], dict[str, Any], Any]]) -> list[Any]:
    if task == "question-answering":
        # transformers has no pipeline for it; tests/frameworks/tasks has the reference.
        model = load_torch_model(folder, task=task)
        assert isinstance(model, TaskModel)
        assert model.pipeline is not None
        pipeline: Any = model.pipeline._pipeline
    else:
        pipeline = transformers.pipeline(task, model=str(folder), device="cpu")
    if task == "video-classification":
        # The reference opens files only.
        paths = [folder / f"{number}.mp4" for number in range(len(requests))]
        for path, (_, _, given) in zip(paths, requests, strict=True):
            path.write_bytes(given)
        return [pipeline(str(path)) for path in paths]
    if task == "document-question-answering":
        pipeline.tokenizer.model_max_length = 40
        return [pipeline(**given) for _, _, given in requests]
    return [pipeline(given, **parameters) for _, parameters, given in requests]


def run_together(model: TaskModel, prepared: list[list[TaskItem]]) -> list[list[Any]]:
    """Run the items of all requests in as few batches as their shapes allow."""
    outputs: dict[int, Any] = {}
    items = [item for each in prepared for item in each]
    shapes = dict.fromkeys(item.shape for item in items)
    for shape in shapes:
        numbers = [number for number, item in enumerate(items) if item.shape == shape]
        batches = [numbers] if shape is not None else [[number] for number in numbers]
        for batch in batches:
            found = model.infer(TaskBatch([items[number] for number in batch]))[TASK_OUTPUT]
            assert isinstance(found, np.ndarray)
            outputs |= dict(zip(batch, found.tolist(), strict=True))
    rows = iter(range(len(items)))
    return [[outputs[next(rows)] for _ in each] for each in prepared]


def check_equal(ours: Any, theirs: Any) -> None:
    """Labels and boxes are equal, numbers close; pictures are PNG in base64."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            check_equal(ours[name], value)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            check_equal(one, other)
    elif isinstance(theirs, float | np.floating):
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
    elif isinstance(theirs, Image.Image):
        assert isinstance(ours, str)
        assert ours.startswith("iVBOR")
    elif isinstance(theirs, torch.Tensor):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-3)
    else:
        assert ours == theirs


@pytest.mark.parametrize("task", TEXT_TASKS + IMAGE_TASKS + OTHER_TASKS)
def test_task_model_equals_pipeline(task: str, folders: Path) -> None:
    model = served(folders, task)
    assert model.spec.task == task
    assert model.pipeline is not None
    requests = requests_of(task)
    references = references_of(task, folders / task, requests)
    prepared = [model.pipeline.prepare(given, parameters) for given, parameters, _ in requests]
    for (_, parameters, _), outputs, reference in zip(requests, run_together(model, prepared), references, strict=True):
        check_equal(model.pipeline.finish(outputs, parameters), reference)
    if task not in OTHER_TASKS:
        shapes = {item.shape for each in prepared for item in each}
        assert len(shapes) < sum(map(len, prepared)), "no two inputs share a run"


def test_aggregated_entities_equal_pipeline(folders: Path) -> None:
    model = served(folders, "token-classification")
    assert model.pipeline is not None
    reference = transformers.pipeline("token-classification", model=str(folders / "token-classification"), device="cpu")
    for strategy in ("simple", "first", "average", "max"):
        options: dict[str, Any] = {"aggregation_strategy": strategy, "ignore_labels": []}
        items = model.pipeline.prepare({"text": TEXTS[2]}, options)
        [outputs] = run_together(model, [items])
        check_equal(model.pipeline.finish(outputs, options), reference(TEXTS[2], **options))


def test_long_text_with_stride_equals_pipeline(folders: Path) -> None:
    model = served(folders, "token-classification")
    assert model.pipeline is not None
    reference = transformers.pipeline("token-classification", model=str(folders / "token-classification"), device="cpu")
    reference.tokenizer.model_max_length = model.pipeline.max_tokens
    text, options = " ".join(TEXTS * 4), {"stride": 5, "aggregation_strategy": "simple"}
    items = model.pipeline.prepare({"text": text}, options)
    assert len(items) > 1
    [outputs] = run_together(model, [items])
    check_equal(model.pipeline.finish(outputs, options), reference(text, **options))


def test_too_long_masked_text_is_refused(folders: Path) -> None:
    model = served(folders, "fill-mask")
    assert model.pipeline is not None
    with pytest.raises(InvalidInput, match="text: expected at most 40 tokens"):
        model.pipeline.prepare({"text": " ".join(["[MASK]"] + TEXTS * 5)}, {})


def test_parameter_refused_by_pipeline_is_invalid_input(folders: Path) -> None:
    model = served(folders, "token-classification")
    assert model.pipeline is not None
    with pytest.raises(InvalidInput, match="parameters: "):
        model.pipeline.prepare({"text": "cat"}, {"stride": 10_000, "aggregation_strategy": "simple"})


@pytest.mark.parametrize("name", NOT_SERVED)
def test_class_that_is_not_served_is_refused(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "config.json", {"architectures": [name], "model_type": "sam2"})
    served = "VitsModel only; serve one" if "torchvision" not in NOT_SERVED[name] else "torchvision.*serve a SamModel"
    for task in (None, "mask-generation", "feature-extraction", "text-to-speech"):
        with pytest.raises(InvalidModel, match=f"{name}: .*{served}"):
            load_torch_model(tmp_path, task=task)


def test_tensors_for_task_model_are_refused(folders: Path) -> None:
    model = served(folders, "object-detection")
    with pytest.raises(InvalidInput, match="expected image"):
        model.infer(TensorBatch({"pixel_values": np.zeros((1, 3, 32, 32), np.float32)}))


def test_task_that_class_cannot_do_is_refused(folders: Path) -> None:
    folder = save_task_model(folders / "other", "object-detection")
    with pytest.raises(InvalidModel, match="DetrForObjectDetection"):
        load_torch_model(folder, task="fill-mask")


def test_labels_of_different_requests_do_not_mix(folders: Path) -> None:
    model = served(folders, "zero-shot-image-classification")
    assert model.pipeline is not None
    picture = {"image": encoded(PICTURES[0], "PNG")}
    one = model.pipeline.prepare(picture, LABELS)
    other = model.pipeline.prepare(picture, {"candidate_labels": ["engine", "a mat", "cold"]})
    assert one[0].shape != other[0].shape


def test_many_parts_of_long_text_are_refused(folders: Path) -> None:
    model = served(folders, "token-classification")
    assert model.pipeline is not None
    text = " ".join(["cat"] * 15_000)
    with pytest.raises(InvalidInput, match=r"lower parameters\.stride"):
        model.pipeline.prepare({"text": text}, {"stride": 37, "aggregation_strategy": "simple"})


def test_too_many_results_are_invalid_input(folders: Path) -> None:
    model = served(folders, "fill-mask")
    assert model.pipeline is not None
    items = model.pipeline.prepare({"text": "cat [MASK]"}, {"top_k": 1000})
    [outputs] = run_together(model, [items])
    with pytest.raises(InvalidInput, match="parameters: "):
        model.pipeline.finish(outputs, {"top_k": 1000})
