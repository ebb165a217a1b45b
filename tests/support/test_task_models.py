"""Each tiny model of the census runs in transformers' own pipeline."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.support.models.tasks import (
    NOT_BUILT,
    WITHOUT_PIPELINE,
    architectures,
    census,
    make,
    parameters,
    samples,
)
from tests.support.models.tasks.answers import check_answer

BUILT = [pair for pair in census() if pair not in NOT_BUILT]
HANDFUL = [
    ("token-classification", "bert"), ("token-classification", "qwen2"), ("fill-mask", "roberta"),
    ("object-detection", "yolos"), ("object-detection", "detr"), ("image-segmentation", "segformer"),
    ("depth-estimation", "dpt"), ("zero-shot-classification", "bert"), ("zero-shot-image-classification", "clip"),
    ("audio-classification", "wav2vec2"), ("question-answering", "bert"), ("mask-generation", "sam"),
    ("document-question-answering", "layoutlm"), ("zero-shot-object-detection", "owlvit"),
]  # fmt: skip
MOST_BYTES = 8 << 20


def test_not_built_pairs_are_in_census() -> None:
    assert set(NOT_BUILT) <= set(census())


@pytest.mark.parametrize(("task", "model_type"), HANDFUL)
def test_pipeline_answers_samples(task: str, model_type: str, tmp_path: Path) -> None:
    _run(task, model_type, tmp_path)


def test_make_twice_gives_equal_weights(tmp_path: Path) -> None:
    one, two = (make("fill-mask", "bert", tmp_path / name) / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.extended
@pytest.mark.parametrize(("task", "model_type"), [pair for pair in BUILT if pair not in HANDFUL])
def test_pipeline_answers_samples_of_family(task: str, model_type: str, tmp_path: Path) -> None:
    _run(task, model_type, tmp_path)


def _run(task: str, model_type: str, folder: Path) -> None:
    if task == "video-classification":
        pytest.importorskip("av")
    make(task, model_type, folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < MOST_BYTES
    if task in WITHOUT_PIPELINE:
        return (_answer_questions if task == "question-answering" else _answer_points)(model_type, folder)
    pipe: Any = transformers.pipeline(task, model=str(folder), device="cpu")
    mask = pipe.tokenizer.mask_token if task == "fill-mask" else ""
    for sample in samples(task, mask, folder):
        check_answer(task, pipe(sample, **parameters(task, model_type)))
    return None


def _answer_questions(model_type: str, folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, architectures("question-answering")[model_type]).from_pretrained(folder).eval()
    for sample in samples("question-answering"):
        tokens = tokenizer(sample["question"], sample["context"], return_tensors="pt")
        with torch.inference_mode():
            answer = model(**tokens)
        assert answer.start_logits.shape == answer.end_logits.shape == tokens["input_ids"].shape


def _answer_points(model_type: str, folder: Path) -> None:
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = getattr(transformers, architectures("mask-generation")[model_type]).from_pretrained(folder).eval()
    for picture in samples("mask-generation"):
        inputs = processor(picture, input_points=[[[10, 12]]], return_tensors="pt")
        with torch.inference_mode():
            masks = model(**inputs).pred_masks
        whole = processor.image_processor.post_process_masks(
            masks, inputs["original_sizes"], inputs["reshaped_input_sizes"]
        )
        assert whole[0].shape == (1, 3, picture.height, picture.width)
