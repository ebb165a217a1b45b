"""The videos of a conversation: which frames the model reads of them, within bounds, and the decoded frames."""

from collections.abc import Sequence
from dataclasses import dataclass

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import MessageImage, VisionSpec
from frameworks.media.container import MediaBounds, is_installed, missing_reason
from frameworks.media.video import VideoSize, decode_frames, measure_video
from frameworks.pytorch.generation.vision.processing import ImageProcessing, SampledVideo

_MAX_BYTES = 480 * 1024**2
"""Of the decoded frames of a conversation: one such fits the bound of all conversations."""
_RGB = 3


@dataclass(frozen=True, slots=True)
class VideoSelection:
    """The frames that a model reads of a video. `indices`: of the frames in the file."""

    file: MessageImage
    size: VideoSize
    indices: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the decoded frames."""
        return len(self.indices) * self.size.height * self.size.width * _RGB


def no_videos_because(processing: ImageProcessing) -> str | None:
    """Return why no video of a request is read; None: they are."""
    return processing.no_videos_because or (None if is_installed() else missing_reason())


def select_frames(
    videos: Sequence[MessageImage], processing: ImageProcessing, bounds: VisionSpec
) -> list[VideoSelection]:
    """Return the frames that the processor reads of each video. None is decoded.

    Raises InvalidInput with the field of a video: for other files, beyond the bounds, or without frames to read.
    """
    selections = [_selection(file, processing, _media_bounds(bounds)) for file in videos]
    num_frames = sum(len(each.indices) for each in selections)
    if num_frames > bounds.max_video_frames:
        raise InvalidInput(
            videos[-1].field,
            f"expected at most {bounds.max_video_frames} frames of all videos, got {num_frames}; send shorter or fewer "
            "ones, or raise max_video_frames of the model",
        )
    nbytes = sum(each.nbytes for each in selections)
    if nbytes > _MAX_BYTES:
        raise InvalidInput(
            videos[-1].field,
            f"expected at most {_MAX_BYTES} bytes of decoded frames, got {nbytes}; send smaller or shorter videos",
        )
    return selections


def decode_selection(selection: VideoSelection, bounds: VisionSpec) -> SampledVideo:
    """Decode the selected frames of a video. Raises InvalidInput with its field."""
    file = selection.file
    frames = decode_frames(file.data, selection.indices, file.field, _media_bounds(bounds))
    return SampledVideo(frames, selection.indices, selection.size)


def _selection(file: MessageImage, processing: ImageProcessing, bounds: MediaBounds) -> VideoSelection:
    size = measure_video(file.data, file.field, bounds)
    try:
        indices = processing.sample(size)
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise InvalidInput(
            file.field, f"expected a video that the model's processor samples, got an error: {error}; send a longer one"
        ) from error
    if not indices or min(indices) < 0 or max(indices) >= size.num_frames:
        raise InvalidInput(
            file.field,
            f"expected a video with enough frames for the model's processor, got {size.num_frames}; send a longer one",
        )
    return VideoSelection(file, size, indices)


def _media_bounds(bounds: VisionSpec) -> MediaBounds:
    return MediaBounds(max_seconds=bounds.max_video_seconds, max_kept_pixels=_MAX_BYTES // _RGB)
