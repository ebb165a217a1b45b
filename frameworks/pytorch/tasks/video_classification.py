"""Classify videos: the pipeline of transformers with a decoder that has bounds."""

from typing import Any

import numpy as np
from transformers.pipelines.video_classification import VideoClassificationPipeline

from frameworks.core.errors import InvalidModel
from frameworks.media.video import decode_video


class VideoClassification(VideoClassificationPipeline):  # type: ignore[misc]  # transformers has no types
    """Read a file as bytes, or frames [frames, height, width, 3]."""

    # It needs torchvision. The frames are picked here, as that pipeline does for image processors.
    _load_video_processor = False
    _load_image_processor = True

    def __init__(self, **options: Any) -> None:
        """Raise InvalidModel for a model without an image processor."""
        super().__init__(**options)
        if self.image_processor is None:
            raise InvalidModel("expected an image processor for the frames, got none")

    def preprocess(self, video: Any, num_frames: int | None = None, frame_sampling_rate: int = 1) -> Any:
        """Return the pixels of the frames. Raises InvalidInput."""
        if num_frames is None:
            num_frames = self.model.config.num_frames
        if isinstance(video, bytes):
            frames = decode_video(video, num_frames, frame_sampling_rate, "video")
        else:
            last = num_frames * frame_sampling_rate - 1
            frames = video[np.linspace(0, last, num=num_frames, dtype=np.int64)]
        return self.image_processor(list(frames), return_tensors="pt").to(self.dtype)
