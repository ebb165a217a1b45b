"""Decoding of video: the frames that transformers picks, and a refusal that names the field for every other file."""

from io import BytesIO
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import InvalidInput
from frameworks.media.container import MediaBounds
from frameworks.media.video import Frames, VideoSize, decode_frames, decode_video, measure_video
from tests.support.media import check_refusal, encoded_audio, encoded_video, moving_square, tone

CLIP = encoded_video(moving_square(24))


def refusal(data: bytes, num_frames: int = 4, rate: int = 1, bounds: MediaBounds | None = None) -> str:
    with pytest.raises(InvalidInput) as raised:
        decode_video(data, num_frames, rate, "video[1]", bounds or MediaBounds())
    assert raised.value.field == "video[1]"
    return raised.value.reason


@pytest.mark.parametrize(("num_frames", "rate"), [(1, 1), (8, 1), (8, 3), (5, 4)])
@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp4", "mpeg4"), ("mp4", "libx264"), ("webm", "libvpx"), ("matroska", "mjpeg"), ("avi", "mpeg4")],
)
def test_frames_equal_those_of_transformers(form: str, codec: str, num_frames: int, rate: int) -> None:
    from transformers.pipelines.video_classification import read_video_pyav

    data = encoded_video(moving_square(24), form, codec)
    indices = np.linspace(0, num_frames * rate - 1, num=num_frames, dtype=np.int64)
    expected = read_video_pyav(av.open(BytesIO(data)), indices)
    decoded = decode_video(data, num_frames, rate, "video")
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, expected)


FORMS = [("mp4", "mpeg4"), ("mp4", "libx264"), ("webm", "libvpx"), ("matroska", "mjpeg"), ("avi", "mpeg4")]


@pytest.mark.parametrize(("form", "codec"), FORMS)
def test_size_of_video_is_counted(form: str, codec: str) -> None:
    data = encoded_video(moving_square(25), form, codec, rate=10)
    assert measure_video(data, "video") == VideoSize(25, 10.0, 48, 64)


@pytest.mark.parametrize(("form", "codec"), FORMS)
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 24), min_size=1, max_size=12))
def test_frames_by_index_equal_all_frames(form: str, codec: str, indices: list[int]) -> None:
    data = encoded_video(moving_square(25), form, codec)
    np.testing.assert_array_equal(decode_frames(data, indices, "video"), _all_frames(data)[indices])


def test_bounds_of_size_checked_without_decoding() -> None:
    def refused(data: bytes, bounds: MediaBounds) -> str:
        with pytest.raises(InvalidInput) as raised:
            measure_video(data, "video[1]", bounds)
        check_refusal(raised.value, "video[1]")
        return raised.value.reason

    assert "at most 2 seconds of video" in refused(CLIP, MediaBounds(max_seconds=2))
    assert "at most 23 frames in the file, got 24" in refused(CLIP, MediaBounds(max_frames=23))
    assert "got frames of 64 x 48" in refused(CLIP, MediaBounds(max_decoded_pixels=24 * 64 * 48 - 1))
    assert "a stream of video, got one without" in refused(encoded_audio(tone(4_000), "mp4", "aac"), MediaBounds())


def _all_frames(data: bytes) -> Frames:
    opened: Any = av.open(BytesIO(data))
    with opened as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_bounds_checked_before_decoding() -> None:
    assert "at most 10 bytes" in refusal(CLIP, bounds=MediaBounds(max_bytes=10))
    assert "at most 2 seconds of video, got 2; send a shorter" in refusal(CLIP, bounds=MediaBounds(max_seconds=2))
    assert "or frames of more than 3071 pixels" in refusal(CLIP, bounds=MediaBounds(max_pixels=64 * 48 - 1))
    assert "got frames of 64 x 48" in refusal(CLIP, bounds=MediaBounds(max_kept_pixels=64 * 48 * 4 - 1))
    assert "got frames of 64 x 48" in refusal(CLIP, bounds=MediaBounds(max_decoded_pixels=64 * 48 * 4 - 1))
    assert "1 to 10000 frames to decode, got 6000 at a sampling rate of 2" in refusal(CLIP, 6000, 2)
    assert "1 to 10000 frames" in refusal(CLIP, 0)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "other bytes"),
        (b"\0\0\0\x18ftypisom" + bytes(200), "expected a whole video file"),
        (encoded_audio(tone(4_000), "mp4", "aac"), "expected a file with a stream of video, got one without"),
        (encoded_video(moving_square(3)), "expected a video of at least 4 frames, got 3; send a longer one"),
    ],
)
def test_other_bytes_refused(data: bytes, found: str) -> None:
    assert found in refusal(data)


FILES = [encoded_video(moving_square(4)), encoded_video(moving_square(4), "webm", "libvpx")]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_damaged_file_decoded_or_refused(data: bytes, changes: list[tuple[float, int]], keep: float) -> None:
    damaged = bytearray(data)
    for position, value in changes:
        damaged[int(position * len(damaged))] = value
    bounds = MediaBounds(max_seconds=60, max_pixels=100_000)
    for given_bytes in (bytes(damaged), bytes(damaged[: int(keep * len(damaged))])):
        try:
            assert len(decode_video(given_bytes, 3, 1, "video", bounds)) == 3
        except InvalidInput as error:
            check_refusal(error, "video")
