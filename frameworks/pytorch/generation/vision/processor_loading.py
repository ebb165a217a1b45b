"""Load transformers' processor of a folder. Its part for videos needs torchvision, which the server does not use."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import transformers
from transformers import processing_utils
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import is_torchvision_available

from frameworks.core.errors import InvalidModel

_changes = Lock()


class UnreadVideos(BaseImageProcessor):  # type: ignore[misc]  # untyped
    """Stands for a processor of videos, which is never called. Its attributes are those that processors of images and
    text read of it.
    """

    model_input_names = ("pixel_values",)
    temporal_patch_size = 2
    merge_size = 2
    fps = 1
    num_frames = 4

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> "UnreadVideos":
        """Return one: it has no settings."""
        return cls()


@contextmanager
def _without_videos() -> Iterator[None]:
    """Let transformers build processors whose part for videos is absent, where torchvision is."""
    if is_torchvision_available():
        yield
        return
    smolvlm = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    videos = importlib.import_module("transformers.models.auto.video_processing_auto")
    bases = processing_utils.MODALITY_TO_BASE_CLASS_MAPPING
    with _changes:
        kept = bases["video_processor"], videos.AutoVideoProcessor, smolvlm.num2words
        bases["video_processor"], videos.AutoVideoProcessor = "BaseImageProcessor", UnreadVideos
        # It writes the numbers of a video in words.
        smolvlm.num2words = smolvlm.num2words or str
        try:
            yield
        finally:
            bases["video_processor"], videos.AutoVideoProcessor, smolvlm.num2words = kept


def load_processor(folder: Path) -> Any:
    """Return the processor of images and text of a folder. Raises InvalidModel."""
    try:
        with _without_videos():
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
