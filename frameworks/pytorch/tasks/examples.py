"""Example inputs of each task, a short and a long one, for the trial at load."""

from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from frameworks.scheduling.merging.text_padding import TRIAL_TEXTS
from frameworks.types import Array

_RATE_HZ = 16_000
_NUM_FRAMES = 256
MASK = "[MASK]"
"""Stands for the mask token of the model's tokenizer."""


@dataclass(frozen=True, slots=True)
class Example:
    """An input and its parameters."""

    task_input: dict[str, Any]
    parameters: dict[str, Any] = field(default_factory=dict)


def _picture(height: int, width: int) -> bytes:
    """Return a PNG with gradients: a plain picture would hide what padding changes."""
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([rows * 255 // height, columns * 255 // width, (rows * columns) % 256], axis=-1)
    file = BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def _sound(seconds: float) -> Array:
    """Return samples, float32 [samples]. Models read the same number of samples at every rate."""
    at_s = np.arange(int(seconds * _RATE_HZ)) / _RATE_HZ
    samples: Array = (0.5 * np.sin(2 * np.pi * (220 + 80 * at_s) * at_s)).astype(np.float32)
    return samples


def _frames(height: int, width: int) -> Array:
    """Return more frames than any model reads, uint8 [frames, height, width, 3]."""
    at, row, column, channel = np.mgrid[0:_NUM_FRAMES, 0:height, 0:width, 0:3]
    frames: Array = (at * 16 + row + 2 * column + 50 * channel).astype(np.uint8)
    return frames


_SMALL, _LARGE = _picture(48, 64), _picture(120, 90)
_LABELS = {"candidate_labels": ["a plain thing", "something else"]}
_TABLE = {"name": ["one", "two"], "count": ["1", "22"]}
_WORDS = [["total", [100, 100, 200, 150]], ["12", [220, 100, 260, 150]]]


def _texts(**parameters: Any) -> tuple[Example, Example]:
    short, long = TRIAL_TEXTS
    return Example({"text": short}, parameters), Example({"text": long}, parameters)


def _pictures(**parameters: Any) -> tuple[Example, Example]:
    return Example({"image": _SMALL}, parameters), Example({"image": _LARGE}, parameters)


def _questions(short: dict[str, Any], long: dict[str, Any]) -> tuple[Example, Example]:
    return Example(short), Example(long)


EXAMPLES: dict[str, tuple[Example, Example]] = {
    "token-classification": _texts(),
    "fill-mask": (Example({"text": f"{MASK} {TRIAL_TEXTS[0]}"}), Example({"text": f"{TRIAL_TEXTS[1]} {MASK}"})),
    "zero-shot-classification": _texts(**_LABELS),
    "text-to-audio": _texts(),
    "question-answering": _questions(
        {"question": "What is warm?", "context": TRIAL_TEXTS[0]},
        {"question": "What is warm?", "context": TRIAL_TEXTS[1]},
    ),
    "table-question-answering": _questions(
        {"query": "How many are two?", "table": _TABLE},
        {"query": "How many are one and two of them together?", "table": _TABLE},
    ),
    "document-question-answering": _questions(
        {"image": _SMALL, "question": "What is the total?", "word_boxes": _WORDS},
        {"image": _SMALL, "question": "What is the total?", "word_boxes": _WORDS * 3},
    ),
    "object-detection": _pictures(),
    "image-segmentation": _pictures(),
    "depth-estimation": _pictures(),
    "mask-generation": _pictures(points_per_crop=2, pred_iou_thresh=0.0, stability_score_thresh=0.0),
    "zero-shot-image-classification": _pictures(**_LABELS),
    "zero-shot-object-detection": _pictures(**_LABELS),
    "audio-classification": (Example({"audio": _sound(1.0)}), Example({"audio": _sound(1.7)})),
    "automatic-speech-recognition": (Example({"audio": _sound(1.0)}), Example({"audio": _sound(1.7)})),
    "zero-shot-audio-classification": (
        Example({"audio": _sound(1.0)}, _LABELS),
        Example({"audio": _sound(1.7)}, _LABELS),
    ),
    "video-classification": (Example({"video": _frames(48, 64)}), Example({"video": _frames(90, 72)})),
    "keypoint-matching": (Example({"image": [_SMALL, _SMALL]}), Example({"image": [_LARGE, _SMALL]})),
}
