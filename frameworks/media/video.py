"""Decode the frames of a video that a model reads, as transformers' pipeline for videos picks them."""

from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.media.containers import DEFAULT_BOUNDS, MediaBounds, opened

Frames = np.ndarray[Any, np.dtype[np.uint8]]


def decode_video(
    data: bytes, num_frames: int, frame_sampling_rate: int, field: str = "video", bounds: MediaBounds = DEFAULT_BOUNDS
) -> Frames:
    """Return frames of the first stream, uint8 [num_frames, height, width, 3].

    They are evenly spaced among the first `num_frames` times `frame_sampling_rate` frames, both ends included. Raises
    InvalidInput with this `field`: for another format, beyond the bounds, with fewer frames, and damaged.
    """
    last = num_frames * frame_sampling_rate - 1
    wanted = set(np.linspace(0, last, num=num_frames, dtype=np.int64).tolist())
    with opened(data, "video", field, bounds) as container:
        stream = container.streams.video[0]
        # Several videos are decoded at the same time.
        stream.codec_context.thread_count = 1
        _check_sizes(stream.codec_context.height, stream.codec_context.width, num_frames, last + 1, field, bounds)
        picked: list[Frames] = []
        for number, frame in enumerate(container.decode(stream)):
            # A stream may change its size.
            _check_sizes(frame.height, frame.width, num_frames, last + 1, field, bounds)
            if number in wanted:
                picked.append(frame.to_ndarray(format="rgb24"))
            if number == last:
                break
    if len(picked) < len(wanted):
        raise InvalidInput(
            field, f"expected at least {last + 1} frames, got fewer; send a longer video, or lower num_frames"
        )
    if len({frame.shape for frame in picked}) > 1:
        raise InvalidInput(field, "expected frames of one size, got several sizes; encode it again")
    return np.stack(picked)


def _check_sizes(height: int, width: int, picked: int, decoded: int, field: str, bounds: MediaBounds) -> None:
    pixels = height * width
    if not 0 < pixels <= bounds.max_frame_pixels:
        raise InvalidInput(
            field,
            f"expected frames of up to {bounds.max_frame_pixels} pixels, got {width} x {height}; send a smaller one",
        )
    if pixels * decoded > bounds.max_decoded_pixels or 3 * pixels * picked > bounds.max_picked_bytes:
        raise InvalidInput(
            field,
            f"expected less to decode, got {decoded} frames of {width} x {height}, {picked} of them for the model; "
            "send a smaller video, or lower num_frames or frame_sampling_rate",
        )
