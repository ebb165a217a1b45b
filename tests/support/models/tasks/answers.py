"""Check the shape of what a pipeline of transformers answers, by task."""

from typing import Any

_FIELDS: dict[str, tuple[str, ...]] = {
    "token-classification": ("entity", "score", "index", "word", "start", "end"),
    "object-detection": ("score", "label", "box"),
    "zero-shot-object-detection": ("score", "label", "box"),
    "fill-mask": ("score", "token", "token_str", "sequence"),
    "image-segmentation": ("score", "label", "mask"),
    "depth-estimation": ("predicted_depth", "depth"),
    "zero-shot-classification": ("sequence", "labels", "scores"),
    "zero-shot-image-classification": ("score", "label"),
    "zero-shot-audio-classification": ("score", "label"),
    "audio-classification": ("score", "label"),
    "video-classification": ("score", "label"),
    "table-question-answering": ("answer", "coordinates", "cells"),
    "document-question-answering": ("score", "answer", "start", "end"),
    "mask-generation": ("masks", "scores"),
    "keypoint-matching": ("keypoint_image_0", "keypoint_image_1", "score"),
}


def check_answer(task: str, answer: Any) -> None:
    """Raise AssertionError unless each prediction has the fields of its task, and scores that are numbers."""
    predictions = answer if isinstance(answer, list) else [answer]
    for prediction in predictions:
        missing = [field for field in _FIELDS[task] if field not in prediction]
        assert not missing, f"{task}: no {missing} in {sorted(prediction)}"
        if isinstance(prediction.get("score"), float):
            assert prediction["score"] == prediction["score"], f"{task}: the score is NaN"
