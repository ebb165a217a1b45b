"""Decode the frames of a video that transformers' pipeline for video classification picks, within bounds."""

from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.media.container import DEFAULT_BOUNDS, MediaBounds, damaged, opened, prepare_decoder, too_long
from frameworks.media.kinds import Kind

Frames = np.ndarray[Any, np.dtype[np.uint8]]

_KIND: Kind = "video"
_MAX_PACKETS = 100_000


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
    wanted = set(np.linspace(0, last, num=num_frames, dtype=np.int64).tolist())
    with opened(data, _KIND, field, bounds) as container:
        stream = container.streams.video[0]
        _check_size(stream.codec_context.height, stream.codec_context.width, last + 1, num_frames, field, bounds)
        prepare_decoder(stream, bounds)
        kept = _kept_frames(container, stream, wanted, last, field, bounds)
    if len(kept) < num_frames:
        raise InvalidInput(
            field, f"expected a video of at least {last + 1} frames, got {kept.num_decoded}; send a longer one"
        )
    return np.stack(kept)


class _Kept(list[Frames]):
    """The kept frames. `num_decoded`: of all frames up to the last one."""

    num_decoded = 0


def _kept_frames(container: Any, stream: Any, wanted: set[int], last: int, field: str, bounds: MediaBounds) -> _Kept:
    kept = _Kept()
    size: tuple[int, int] | None = None
    for number, packet in enumerate(container.demux(stream)):
        if number >= _MAX_PACKETS:
            raise InvalidInput(field, f"expected at most {_MAX_PACKETS} packets of video, got more; encode it again")
        for frame in packet.decode():
            if size is None:
                size = (frame.height, frame.width)
                _check_size(*size, last + 1, len(wanted), field, bounds)
            if size != (frame.height, frame.width):
                raise damaged(_KIND, field, "frames of several sizes")
            if frame.time is not None and frame.time > bounds.max_seconds:
                raise too_long(_KIND, field, bounds, f"{frame.time:.0f}")
            if kept.num_decoded in wanted:
                kept.append(frame.to_ndarray(format="rgb24"))
            kept.num_decoded += 1
            if kept.num_decoded > last:
                return kept
    if not kept.num_decoded:
        raise damaged(_KIND, field, "no frames")
    return kept


def _check_size(height: int, width: int, decoded: int, num_kept: int, field: str, bounds: MediaBounds) -> None:
    """Raise InvalidInput for frames beyond the bounds. A decoder that knows no size yet says 0."""
    pixels = height * width
    most = min(bounds.max_pixels, bounds.max_decoded_pixels // decoded, bounds.max_kept_pixels // num_kept)
    if pixels > most:
        raise InvalidInput(
            field, f"expected at most {most} pixels a frame, got frames of {width} x {height}; send smaller ones"
        )
