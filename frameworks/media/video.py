"""Decode frames of a video within bounds: those of transformers' pipeline for video classification, or any others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.media.container import DEFAULT_BOUNDS, MediaBounds, damaged, opened, prepare_decoder, too_long
from frameworks.media.kinds import Kind

Frames = np.ndarray[Any, np.dtype[np.uint8]]

_KIND: Kind = "video"
_MAX_PACKETS = 100_000


@dataclass(frozen=True, slots=True)
class VideoSize:
    """Of the first stream of video: frames, frames a second, and the height and width of each in pixels."""

    num_frames: int
    fps: float
    height: int
    width: int

    @property
    def seconds(self) -> float:
        return self.num_frames / self.fps


def measure_video(data: bytes, field: str, bounds: MediaBounds = DEFAULT_BOUNDS) -> VideoSize:
    """Return the size of a video. Its frames are counted and not decoded.

    Raises InvalidInput with this `field`: for another format, beyond `max_seconds`, `max_frames` or `max_pixels`,
    damaged, without the extra `media`.
    """
    with opened(data, _KIND, field, bounds) as container:
        stream = container.streams.video[0]
        num_frames = 0
        for number, packet in enumerate(container.demux(stream)):
            _check_packets(number, field)
            num_frames += packet.size > 0
        rate = stream.average_rate or stream.guessed_rate
        height, width = stream.codec_context.height, stream.codec_context.width
        if not (num_frames and rate and rate > 0 and height and width):
            raise damaged(_KIND, field, "no frames" if not num_frames else "no size or no frames a second")
        size = VideoSize(num_frames, float(rate), height, width)
        if size.seconds > bounds.max_seconds:
            raise too_long(_KIND, field, bounds, f"{size.seconds:.0f}")
        if num_frames > bounds.max_frames:
            raise InvalidInput(
                field, f"expected at most {bounds.max_frames} frames in the file, got {num_frames}; send a shorter one"
            )
        _check_size(height, width, num_frames, 1, field, bounds)
        return size


def decode_frames(data: bytes, indices: Sequence[int], field: str, bounds: MediaBounds = DEFAULT_BOUNDS) -> Frames:
    """Return frames by their indices in the first stream of video, uint8 [indices, height, width, 3] in red, green,
    blue. `indices`: at least one. Raises InvalidInput as `measure_video`, and for fewer frames.
    """
    last, wanted = max(indices), set(indices)
    with opened(data, _KIND, field, bounds) as container:
        stream = container.streams.video[0]
        _check_size(stream.codec_context.height, stream.codec_context.width, last + 1, len(wanted), field, bounds)
        prepare_decoder(stream, bounds)
        kept = _kept_frames(container, stream, wanted, field, bounds)
    if len(kept.frames) < len(wanted):
        raise InvalidInput(
            field, f"expected a video of at least {last + 1} frames, got {kept.num_decoded}; send a longer one"
        )
    return np.stack([kept.frames[index] for index in indices])


def decode_video(
    data: bytes, num_frames: int, frame_sampling_rate: int, field: str, bounds: MediaBounds = DEFAULT_BOUNDS
) -> Frames:
    """Return `num_frames` frames of the first stream of video, uint8 [frames, height, width, 3] in red, green, blue.

    Their numbers are those of `np.linspace(0, num_frames * frame_sampling_rate - 1, num_frames)`, as in transformers.
    Raises InvalidInput with this `field`: for another format, beyond the bounds, too short, damaged, without the
    extra `media`.
    """
    last = num_frames * frame_sampling_rate - 1
    if num_frames < 1 or frame_sampling_rate < 1 or last >= bounds.max_frames:
        raise InvalidInput(
            field,
            f"expected 1 to {bounds.max_frames} frames to decode, got {num_frames} at a sampling rate of "
            f"{frame_sampling_rate}; ask for fewer",
        )
    return decode_frames(data, np.linspace(0, last, num=num_frames, dtype=np.int64).tolist(), field, bounds)


class _Kept:
    """The kept frames by their indices, and the number of all decoded ones."""

    def __init__(self) -> None:
        self.frames: dict[int, Frames] = {}
        self.num_decoded = 0


def _kept_frames(container: Any, stream: Any, wanted: set[int], field: str, bounds: MediaBounds) -> _Kept:
    kept, last = _Kept(), max(wanted)
    size: tuple[int, int] | None = None
    for number, packet in enumerate(container.demux(stream)):
        _check_packets(number, field)
        for frame in packet.decode():
            if size is None:
                size = (frame.height, frame.width)
                _check_size(*size, last + 1, len(wanted), field, bounds)
            if size != (frame.height, frame.width):
                raise damaged(_KIND, field, "frames of several sizes")
            if frame.time is not None and frame.time > bounds.max_seconds:
                raise too_long(_KIND, field, bounds, f"{frame.time:.0f}")
            if kept.num_decoded in wanted:
                kept.frames[kept.num_decoded] = frame.to_ndarray(format="rgb24")
            kept.num_decoded += 1
            if kept.num_decoded > last:
                return kept
    if not kept.num_decoded:
        raise damaged(_KIND, field, "no frames")
    return kept


def _check_packets(number: int, field: str) -> None:
    if number >= _MAX_PACKETS:
        raise InvalidInput(field, f"expected at most {_MAX_PACKETS} packets of video, got more; encode it again")


def _check_size(height: int, width: int, decoded: int, num_kept: int, field: str, bounds: MediaBounds) -> None:
    """Raise InvalidInput for frames beyond the bounds. A decoder that knows no size yet says 0."""
    pixels = height * width
    most = min(bounds.max_pixels, bounds.max_decoded_pixels // decoded, bounds.max_kept_pixels // num_kept)
    if pixels > most:
        raise InvalidInput(
            field, f"expected at most {most} pixels a frame, got frames of {width} x {height}; send smaller ones"
        )
