"""Make the inputs of each task: several of different lengths and sizes, and the parameters that they need."""

import io
import itertools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZES = ((48, 40), (96, 64), (40, 80), (64, 64))
"""Widths and heights of the pictures."""
SECONDS = (0.5, 1.2, 0.8, 1.0)
RATE = 16_000
FRAMES = (16, 20, 24, 18)
TEXTS = (
    "the cat sat on the mat .",
    "steam",
    "the engine of the turntable runs on steam , the cat sat on the engine of steam .",
    "zebra crossing in Berlin",
)
CONTEXTS = (
    ("who sat on the mat ?", "the cat sat on the mat ."),
    ("what runs ?", "the engine of the turntable runs on steam , the cat sat on the engine of steam ."),
    ("where ?", "zebra crossing in Berlin"),
    ("what is it ?", "the engine of steam runs on the turntable , and the cat sat on it . " * 2),
)
CANDIDATES = ("sport", "politics of steam", "cat")
TABLE = {"engine": ["Rocket", "Mallard", "Adler"], "year": ["1829", "1938", "1835"], "wheels": ["4", "12", "6"]}
QUESTIONS = ("which engine is of 1835 ?", "how many wheels ?", "what is the year of the Mallard engine ?", "sum ?")
WORD_BOXES = [
    ("invoice", [10, 10, 200, 40]), ("number", [210, 10, 380, 40]), ("42", [400, 10, 450, 40]),
    ("the", [10, 60, 60, 90]), ("engine", [70, 60, 200, 90]), ("costs", [210, 60, 330, 90]),
    ("steam", [340, 60, 450, 90]),
]  # fmt: skip
PARAMETERS: dict[str, dict[str, Any]] = {
    "token-classification": {"ignore_labels": []},
    "object-detection": {"threshold": 0.0},
    "image-segmentation": {"threshold": 0.0, "mask_threshold": 0.0, "overlap_mask_area_threshold": 0.0},
    "fill-mask": {"top_k": 3},
    "zero-shot-classification": {"candidate_labels": list(CANDIDATES)},
    "zero-shot-image-classification": {"candidate_labels": list(CANDIDATES)},
    "zero-shot-audio-classification": {"candidate_labels": list(CANDIDATES)},
    "zero-shot-object-detection": {"threshold": 0.0, "top_k": 5},
    "mask-generation": {"points_per_crop": 3, "pred_iou_thresh": -1e9, "stability_score_thresh": -1.0},
}
"""Parameters with which a model of random weights answers something."""
_PARAMETERS_OF = {("image-segmentation", "oneformer"): {"subtask": "semantic"}}
"""Its other subtasks need torchvision."""


def parameters(task: str, model_type: str = "") -> dict[str, Any]:
    """Return the parameters of a call of the pipeline."""
    return PARAMETERS.get(task, {}) | _PARAMETERS_OF.get((task, model_type), {})


def pictures() -> list[Image.Image]:
    """Return RGB pictures of `SIZES`: gradients with noise."""
    rng = np.random.default_rng(3)
    made = []
    for i, (width, height) in enumerate(SIZES):
        ramp = np.linspace(0, 200, width)[None, :, None] * np.ones((height, 1, 3)) * [1.0, 0.3 * i, 0.5]
        made.append(Image.fromarray((ramp + rng.integers(0, 56, (height, width, 3))).clip(0, 255).astype(np.uint8)))
    return made


def sounds(rate: int = RATE) -> list[Any]:
    """Return float32 waves of `SECONDS`: tones with noise."""
    rng = np.random.default_rng(3)
    times = [np.arange(int(rate * seconds)) / rate for seconds in SECONDS]
    tones = [np.sin(2 * np.pi * (220 + 110 * i) * time) for i, time in enumerate(times)]
    return [(0.4 * tone + 0.05 * rng.standard_normal(tone.size)).astype(np.float32) for tone in tones]


def frames() -> list[Any]:
    """Return videos of `FRAMES` frames: uint8 of shape frames x height x width x 3."""
    rng = np.random.default_rng(3)
    return [
        rng.integers(0, 255, (count, *size[::-1], 3), dtype=np.uint8) for count, size in zip(FRAMES, SIZES, strict=True)
    ]


def png(picture: Image.Image) -> bytes:
    """Return the bytes of a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def wav(wave: Any, rate: int = RATE) -> bytes:
    """Return the bytes of a WAV file of 16-bit samples, one channel."""
    data: bytes = (np.clip(wave, -1, 1) * 32767).astype("<i2").tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16,
                       b"data", len(data))  # fmt: skip
    return head + data


def mp4(video: Any, rate: int = 8) -> bytes:
    """Return the bytes of an MP4 file; needs PyAV."""
    import av  # type: ignore[import-not-found, unused-ignore]

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.height, stream.width, stream.pix_fmt = video.shape[1], video.shape[2], "yuv420p"
        for frame in video:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def _text_with_mask() -> list[str]:
    return [f"{text} {{mask}} cat" for text in TEXTS]


_INPUTS: dict[str, Callable[[], list[Any]]] = {
    "token-classification": lambda: list(TEXTS),
    "zero-shot-classification": lambda: list(TEXTS),
    "fill-mask": _text_with_mask,
    "question-answering": lambda: [{"question": question, "context": context} for question, context in CONTEXTS],
    "table-question-answering": lambda: [{"table": TABLE, "query": query} for query in QUESTIONS],
    "document-question-answering": lambda: [
        {"image": picture, "question": question, "word_boxes": WORD_BOXES[: 4 + i]}
        for i, (picture, question) in enumerate(zip(pictures(), QUESTIONS, strict=True))
    ],
    "zero-shot-object-detection": lambda: [
        {"image": picture, "candidate_labels": list(CANDIDATES)} for picture in pictures()
    ],
    "audio-classification": sounds,
    "zero-shot-audio-classification": lambda: sounds(48_000),
    "video-classification": lambda: [mp4(video) for video in frames()],
    "keypoint-matching": lambda: [list(pair) for pair in itertools.pairwise([*pictures(), pictures()[0]])],
}


def samples(task: str, mask_token: str = "[MASK]", folder: Path | None = None) -> list[Any]:
    """Return what `pipeline()` takes: texts, pictures, waves, pairs or objects. `mask_token`: of fill-mask.

    `folder`: where videos are written, for the pipeline takes paths; without it they are bytes.
    """
    made = _INPUTS.get(task, pictures)()
    if task == "video-classification" and folder:
        files = [folder / f"video{i}.mp4" for i in range(len(made))]
        return [file.write_bytes(video) and str(file) for file, video in zip(files, made, strict=True)]
    return [text.replace("{mask}", mask_token) for text in made] if task == "fill-mask" else made


def as_bytes(task: str) -> list[bytes]:
    """Return the samples of a task whose inputs are single pictures, sounds or videos, as files."""
    if task == "video-classification":
        return samples(task)
    if "audio" in task:
        return [wav(wave) for wave in sounds()]
    return [png(picture) for picture in pictures()]
