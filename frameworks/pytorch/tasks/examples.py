"""Example inputs of each task, a short and a long one, for the trial at load."""

from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from frameworks.scheduling.merging.text_padding import TRIAL_TEXTS

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


_SMALL, _LARGE = _picture(48, 64), _picture(120, 90)
_LABELS = {"candidate_labels": ["a plain thing", "something else"]}
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
    "question-answering": _questions(
        {"question": "What is warm?", "context": TRIAL_TEXTS[0]},
        {"question": "What is warm?", "context": TRIAL_TEXTS[1]},
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
    "keypoint-matching": (Example({"image": [_SMALL, _SMALL]}), Example({"image": [_LARGE, _SMALL]})),
}
