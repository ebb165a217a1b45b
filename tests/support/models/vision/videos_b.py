"""Load processors whose videos need torchvision where it is absent: their images do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import transformers
from transformers import processing_utils
from transformers.utils import PushToHubMixin, is_torchvision_available


class NoVideos(PushToHubMixin):  # type: ignore[misc]  # untyped
    """Stand for the video processor of a processor; it reads no videos."""

    _auto_class = None
    font = ""  # of ERNIE, for the times that it writes on frames
    slice_mode, downsample_mode = True, "16x"  # of MiniCPM-V
    merge_size = temporal_patch_size = 2

    def __init__(self, name: str = "", **options: Any) -> None:
        self.entry = {"video_processor_type": name, **options}
        self.model_input_names: list[str] = []

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of processor_config.json, from which torchvision builds the real one."""
        return self.entry

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> "NoVideos":
        """Read nothing from a folder."""
        return cls()


_LOADED_AS = {"video_processor": (__name__, "NoVideos")}


@contextmanager
def no_videos() -> Iterator[None]:
    """Let processors be made and loaded without their video processor, if torchvision is absent."""
    if is_torchvision_available():
        yield
        return
    mixin = processing_utils.ProcessorMixin
    check = mixin.check_argument_for_proper_class

    def check_others(self: Any, name: str, argument: Any) -> Any:
        return None if isinstance(argument, NoVideos) else check(self, name, argument)

    with (
        mock.patch.object(mixin, "check_argument_for_proper_class", check_others),
        mock.patch.dict(processing_utils.MODALITY_TO_AUTOPROCESSOR_MAPPING._MAPPING_NAMES, _LOADED_AS),
    ):
        yield


def make_processor(name: str, *parts: Any, videos: str | tuple[str, dict[str, Any]], **options: Any) -> Any:
    """Return a processor of a class of transformers. `videos`: the class of its video processor, with options."""
    kind, settings = (videos, {}) if isinstance(videos, str) else videos
    video = getattr(transformers, kind)(**settings) if is_torchvision_available() else NoVideos(kind, **settings)
    with no_videos():
        return getattr(transformers, name)(*parts, video_processor=video, **options)


def load_processor(folder: Path) -> Any:
    """Return the processor of a folder, with `NoVideos` if torchvision is absent."""
    with no_videos():
        return transformers.AutoProcessor.from_pretrained(folder)
