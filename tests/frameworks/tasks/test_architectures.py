"""The tasks of each class are those that transformers' own tables have."""

from typing import Any

import pytest
from transformers.models.auto import modeling_auto

from frameworks.tasks.architectures import tasks_of
from frameworks.tasks.table import TASKS

MAPPINGS = {
    "text-classification": ("SEQUENCE_CLASSIFICATION",),
    "zero-shot-classification": ("SEQUENCE_CLASSIFICATION",),
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "question-answering": ("QUESTION_ANSWERING",),
    "table-question-answering": ("TABLE_QUESTION_ANSWERING",),
    "document-question-answering": ("DOCUMENT_QUESTION_ANSWERING",),
    "fill-mask": ("MASKED_LM",),
    "image-classification": ("IMAGE_CLASSIFICATION",),
    "object-detection": ("OBJECT_DETECTION",),
    "zero-shot-object-detection": ("ZERO_SHOT_OBJECT_DETECTION",),
    "image-segmentation": (
        "IMAGE_SEGMENTATION",
        "SEMANTIC_SEGMENTATION",
        "INSTANCE_SEGMENTATION",
        "UNIVERSAL_SEGMENTATION",
    ),
    "depth-estimation": ("DEPTH_ESTIMATION",),
    "zero-shot-image-classification": ("ZERO_SHOT_IMAGE_CLASSIFICATION",),
    "mask-generation": ("MASK_GENERATION",),
    "keypoint-matching": ("KEYPOINT_MATCHING",),
    "video-classification": ("VIDEO_CLASSIFICATION",),
    "audio-classification": ("AUDIO_CLASSIFICATION",),
    "automatic-speech-recognition": ("CTC",),
}

LEFT_OUT = {
    # They generate; filling a mask is not their usual task.
    "fill-mask": {"BartForConditionalGeneration", "MBartForConditionalGeneration", "MvpForConditionalGeneration"},
    # They read boxes, which only the task of documents has.
    "question-answering": {"LayoutLMv2ForQuestionAnswering", "LayoutLMv3ForQuestionAnswering"},
}


def _classes_of(task: str) -> set[str]:
    found: set[str] = set()
    for mapping in MAPPINGS[task]:
        names: dict[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
        for name in names.values():
            found.update(name if isinstance(name, tuple) else (name,))
    return found - LEFT_OUT.get(task, set())


@pytest.mark.parametrize("task", MAPPINGS)
def test_classes_of_transformers_have_their_task(task: str) -> None:
    assert [name for name in sorted(_classes_of(task)) if task not in tasks_of(name)] == []


def test_tasks_of_classes_are_in_the_table() -> None:
    classes = {name for task in MAPPINGS for name in _classes_of(task)} | {"ClapModel", "BertModel", "VitsModel"}
    assert {task for name in classes for task in tasks_of(name)} == set(TASKS)


@pytest.mark.parametrize(
    ("architecture", "usual"),
    [
        ("BertForSequenceClassification", "text-classification"),
        ("Wav2Vec2ForSequenceClassification", "audio-classification"),
        ("BertForMaskedLM", "feature-extraction"),
        ("OwlViTForObjectDetection", "zero-shot-object-detection"),
        ("TapasForQuestionAnswering", "table-question-answering"),
        ("LayoutLMv3ForQuestionAnswering", "document-question-answering"),
        ("SamModel", "mask-generation"),
        ("VitsModel", "text-to-audio"),
        ("BertModel", "feature-extraction"),
    ],
)
def test_usual_task_of_a_class_is_first(architecture: str, usual: str) -> None:
    assert tasks_of(architecture)[0] == usual


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "GPT2LMHeadModel", "VisionEncoderDecoderModel", "BertForMultipleChoice", ""]
)
def test_class_of_no_task_has_none(architecture: str) -> None:
    assert tasks_of(architecture) == ()
