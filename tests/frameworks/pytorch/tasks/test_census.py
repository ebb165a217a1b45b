"""Every family of every task that is served, against transformers' own pipeline: alone, and in batches."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from frameworks.core.errors import InvalidModel
from frameworks.media.audio import decode_audio
from frameworks.pytorch.tasks.model import TaskModel
from tests.frameworks.models.loading import load_torch_model
from tests.frameworks.pytorch.tasks.test_task_models import check_equal, run_together
from tests.support.models.tasks import NOT_BUILT, census, make, parameters, samples
from tests.support.models.tasks.inputs import RATE, png, wav
from tests.support.models.tasks.masks import check_masks, mask_pipeline

REFUSED = {
    ("fill-mask", "bart"): "a class with encoder and decoder, which generates text",
    ("fill-mask", "mbart"): "a class with encoder and decoder, which generates text",
    ("fill-mask", "mvp"): "a class with encoder and decoder, which generates text",
    ("question-answering", "canine"): "it has no fast tokenizer",
    ("question-answering", "layoutlmv3"): "its class answers questions about documents",
}
"""Families that the server refuses at load, with the reason."""
NOT_COMPARED = {
    ("image-segmentation", "oneformer"): "the pipeline of transformers answers differently from load to load",
    ("fill-mask", "reformer"): "it draws random numbers in each run",
    ("question-answering", "reformer"): "it draws random numbers in each run",
    ("zero-shot-classification", "reformer"): "it draws random numbers in each run",
}
LEFT_OUT = {*NOT_BUILT, *REFUSED, *NOT_COMPARED}
SERVED = [pair for pair in census() if pair not in LEFT_OUT]
FEW = [
    ("token-classification", "canine"), ("token-classification", "xlnet"), ("object-detection", "yolos"),
    ("fill-mask", "fnet"), ("image-segmentation", "mask2former"), ("depth-estimation", "dpt"),
    ("mask-generation", "sam_hq"), ("audio-classification", "whisper"), ("zero-shot-audio-classification", "clap"),
]  # fmt: skip
"""Those of the second tier; `test_task_models.py` has one of each task in the first."""


@pytest.mark.extended
@pytest.mark.parametrize(("task", "model_type"), FEW)
def test_family_equals_pipeline(task: str, model_type: str, tmp_path: Path) -> None:
    _compare(task, model_type, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize(("task", "model_type"), [pair for pair in SERVED if pair not in FEW])
def test_other_family_equals_pipeline(task: str, model_type: str, tmp_path: Path) -> None:
    _compare(task, model_type, tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize(("task", "model_type"), sorted(REFUSED))
def test_refused_family_is_invalid_model(task: str, model_type: str, tmp_path: Path) -> None:
    make(task, model_type, tmp_path)
    with pytest.raises(InvalidModel):
        load_torch_model(tmp_path, task=task).warm_up()


def _compare(task: str, model_type: str, folder: Path) -> None:
    make(task, model_type, folder)
    model = load_torch_model(folder, task=task)
    assert isinstance(model, TaskModel)
    model.warm_up()
    assert model.pipeline is not None
    options = parameters(task, model_type)
    if task == "zero-shot-object-detection":
        options = {**options, "candidate_labels": samples(task)[0]["candidate_labels"]}
    reference = mask_pipeline(folder) if task == "mask-generation" else _reference(task, folder, model)
    mask = reference.tokenizer.mask_token if task == "fill-mask" else "[MASK]"
    given = samples(task, mask, folder)
    inputs = [_input(task, each) for each in given]
    expected = [
        _predict(task, reference, each, one, parameters(task, model_type))
        for each, one in zip(given, inputs, strict=True)
    ]
    prepared = [model.pipeline.prepare(each, options) for each in inputs]
    check = check_masks if task == "mask-generation" else check_equal
    for outputs, theirs in zip(run_together(model, prepared), expected, strict=True):
        check(model.pipeline.finish(outputs, options), theirs)


def _reference(task: str, folder: Path, model: TaskModel) -> Any:
    """Return the pipeline with the model's own limit of tokens, where its tokenizer states none."""
    assert model.pipeline is not None
    if task == "question-answering":
        # transformers has none any more; tests/frameworks/tasks holds ours to that of version 4.
        return model.pipeline._pipeline
    pipeline: Any = transformers.pipeline(task, model=str(folder), device="cpu")
    if pipeline.tokenizer is not None and model.pipeline.max_tokens is not None:
        pipeline.tokenizer.model_max_length = model.pipeline.max_tokens
    return pipeline


def _predict(task: str, reference: Any, given: Any, own: dict[str, Any], options: dict[str, Any]) -> Any:
    if task == "document-question-answering":
        return reference(**given, **options)
    if "audio" in own:
        # The file has 16 bits.
        given = decode_audio(own["audio"], reference.feature_extractor.sampling_rate, "audio")
    return reference(given, **options)


def _input(task: str, given: Any) -> dict[str, Any]:
    """Return the input of a request for what the pipeline takes."""
    if task in ("audio-classification", "zero-shot-audio-classification"):
        return {"audio": wav(given, 48_000 if task.startswith("zero") else RATE)}
    if task == "video-classification":
        return {"video": Path(given).read_bytes()}
    if task == "keypoint-matching":
        return {"image": [png(each) for each in given]}
    if isinstance(given, str):
        return {"text": given}
    if not isinstance(given, dict):
        return {"image": png(given)}
    own = {name: value for name, value in given.items() if name != "candidate_labels"}
    return own | ({"image": png(own["image"])} if "image" in own else {})
