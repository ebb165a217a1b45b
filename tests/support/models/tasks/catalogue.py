"""List the model types that transformers builds for each task, from its own mappings."""

from transformers.models.auto import modeling_auto

MAPPINGS: dict[str, tuple[str, ...]] = {
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "object-detection": ("OBJECT_DETECTION",),
    "fill-mask": ("MASKED_LM",),
    "image-segmentation": (
        "IMAGE_SEGMENTATION", "SEMANTIC_SEGMENTATION", "INSTANCE_SEGMENTATION", "UNIVERSAL_SEGMENTATION",
    ),
    "depth-estimation": ("DEPTH_ESTIMATION",),
    "zero-shot-classification": ("SEQUENCE_CLASSIFICATION",),
    "zero-shot-image-classification": ("ZERO_SHOT_IMAGE_CLASSIFICATION",),
    "audio-classification": ("AUDIO_CLASSIFICATION",),
    "video-classification": ("VIDEO_CLASSIFICATION",),
    "question-answering": ("QUESTION_ANSWERING",),
    "table-question-answering": ("TABLE_QUESTION_ANSWERING",),
    "document-question-answering": ("DOCUMENT_QUESTION_ANSWERING",),
    "zero-shot-object-detection": ("ZERO_SHOT_OBJECT_DETECTION",),
    "mask-generation": ("MASK_GENERATION",),
    "keypoint-matching": ("KEYPOINT_MATCHING",),
}  # fmt: skip
"""Task to the mappings `MODEL_FOR_…_MAPPING_NAMES`; the first that has a model type names its class."""
AUDIO_TOWERS = {"clap": "ClapModel"}
"""Classes of zero-shot-audio-classification: its pipeline takes any AutoModel, only these have audio and text."""


def architectures(task: str) -> dict[str, str]:
    """Return the model types of a task, with the class of each."""
    if task == "zero-shot-audio-classification":
        return AUDIO_TOWERS
    found: dict[str, str] = {}
    for name in MAPPINGS[task]:
        for model_type, architecture in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES").items():
            found.setdefault(model_type, architecture if isinstance(architecture, str) else architecture[0])
    return found


def census() -> list[tuple[str, str]]:
    """Return each task with each of its model types."""
    tasks = (*MAPPINGS, "zero-shot-audio-classification")
    return [(task, model_type) for task in tasks for model_type in architectures(task)]
