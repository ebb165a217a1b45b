"""Load transformers' processor of a folder. Its part for videos needs torchvision, which the server does not use."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import transformers
from transformers import processing_utils
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import is_torchvision_available

from frameworks.core.errors import InvalidModel

_changes = Lock()
_ABSENT = object()


class UnreadVideos(BaseImageProcessor):  # type: ignore[misc]  # untyped
    """Stands for a processor of videos, which is never called. Its attributes are those that processors of images and
    text read of it.
    """

    model_input_names = ("pixel_values",)
    temporal_patch_size = 2
    merge_size = 2
    fps = 1
    num_frames = 4
    font = ""  # of ERNIE, for the times that it writes on frames
    slice_mode, downsample_mode = True, "16x"  # of MiniCPM-V

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> "UnreadVideos":
        """Return one: it has no settings."""
        return cls()


@cache
def _pixtral_processor() -> Any:
    """Return Pixtral's processor, whose module reads one function from a module that needs torchvision."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules[name] = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
    try:
        return importlib.import_module("transformers.models.pixtral.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[name]


@contextmanager
def _without_absent_libraries() -> Iterator[None]:
    """Let transformers build processors of images and text where libraries for videos are absent."""
    smolvlm = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    # It writes the times of a video in words.
    changed: list[tuple[Any, str, Any]] = [(smolvlm, "num2words", smolvlm.num2words or str)]
    bases = processing_utils.MODALITY_TO_BASE_CLASS_MAPPING
    has_videos = is_torchvision_available()
    if not has_videos:
        videos = importlib.import_module("transformers.models.auto.video_processing_auto")
        pixtral = importlib.import_module("transformers.models.pixtral")
        changed += [
            (videos, "AutoVideoProcessor", UnreadVideos),
            (pixtral, "PixtralProcessor", _pixtral_processor()),
            (transformers, "PixtralProcessor", _pixtral_processor()),
        ]
    with _changes:
        # Lazy modules of transformers have no attribute before it is read.
        kept, base = [vars(module).get(name, _ABSENT) for module, name, _ in changed], bases["video_processor"]
        if not has_videos:
            bases["video_processor"] = "BaseImageProcessor"
        for module, name, value in changed:
            setattr(module, name, value)
        try:
            yield
        finally:
            bases["video_processor"] = base
            for (module, name, _), value in zip(changed, kept, strict=True):
                if value is _ABSENT:
                    delattr(module, name)
                else:
                    setattr(module, name, value)


def load_processor(folder: Path) -> Any:
    """Return the processor of images and text of a folder. Raises InvalidModel."""
    try:
        with _without_absent_libraries():
            processor = transformers.AutoProcessor.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # transformers raises many types on broken folders
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
        raise InvalidModel(f"expected a processor that transformers can load, got none: {reason}") from error
    if not hasattr(processor, "image_processor"):
        raise InvalidModel(f"expected a processor of images and text, got {type(processor).__name__}")
    return processor
