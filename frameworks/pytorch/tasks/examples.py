"""Example inputs of each task, a short and a long one, for the trial at load."""

from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from frameworks.scheduling.merging.text_padding import TRIAL_TEXTS
from frameworks.types import Array

_RATE_HZ = 16_000
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
    """Return samples, float32 [samples], at 16 kHz."""
    at_s = np.arange(int(seconds * _RATE_HZ)) / _RATE_HZ
    return (0.5 * np.sin(2 * np.pi * (220 + 80 * at_s) * at_s)).astype(np.float32)


def _frames(number: int, height: int, width: int) -> Array:
    """Return frames, uint8 [number, height, width, 3]."""
    moving = np.mgrid[0:number, 0:height, 0:width, 0:3]
    frames: Array = (moving[0] * 16 + moving[1] + 2 * moving[2] + 50 * moving[3]).astype(np.uint8)
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


def _sounds(**parameters: Any) -> tuple[Example, Example]:
    return Example({"audio": _sound(1.0)}, parameters), Example({"audio": _sound(1.7)}, parameters)


EXAMPLES: dict[str, tuple[Example, Example]] = {
    "token-classification": _texts(),
    "fill-mask": (Example({"text": f"{MASK} {TRIAL_TEXTS[0]}"}), Example({"text": f"{TRIAL_TEXTS[1]} {MASK}"})),
    "zero-shot-classification": _texts(**_LABELS),
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
    "zero-shot-image-classification": _pictures(**_LABELS),
    "zero-shot-object-detection": _pictures(**_LABELS),
    "mask-generation": _pictures(points_per_crop=2),
    "keypoint-matching": (Example({"image": [_SMALL, _SMALL]}), Example({"image": [_LARGE, _SMALL]})),
    "video-classification": (Example({"video": _frames(16, 48, 64)}), Example({"video": _frames(16, 90, 72)})),
    "audio-classification": _sounds(),
    "zero-shot-audio-classification": _sounds(**_LABELS),
}
