"""Sound and videos: the samples that were encoded, the frames that transformers picks, and damaged files."""

import io
from dataclasses import replace

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.pipelines.video_classification import read_video_pyav

from frameworks.core.errors import InvalidInput
from frameworks.media.audio import decode_audio
from frameworks.media.containers import DEFAULT_BOUNDS, container_of
from frameworks.media.video import decode_video
from tests.support.media import RATE_HZ, sound_file, tone, video_file, wav_file

SOUND, VIDEO = wav_file(tone(0.2)), video_file(8, 16, 16)


def test_wav_file_keeps_its_samples() -> None:
    samples = tone(1.0)
    np.testing.assert_allclose(decode_audio(wav_file(samples), RATE_HZ), samples, atol=1e-4)


def test_sound_is_resampled_to_the_rate_of_the_model() -> None:
    found = decode_audio(wav_file(tone(1.0, 48_000), 48_000), RATE_HZ)
    assert found.dtype == np.float32
    # The filter has an edge at both ends.
    np.testing.assert_allclose(found[200 : RATE_HZ - 200], tone(1.0)[200 : RATE_HZ - 200], atol=2e-3)


def test_channels_are_mixed_as_ffmpeg_does() -> None:
    both = np.stack([tone(0.5), tone(0.5)], axis=1)
    # Each channel counts by the square root of one half; `ffmpeg -ac 1 -f f32le` writes the same samples.
    np.testing.assert_allclose(decode_audio(wav_file(both), RATE_HZ), np.sqrt(2) * tone(0.5), atol=1e-3)


@pytest.mark.parametrize(
    ("container", "codec", "rate_hz"),
    [("flac", "flac", RATE_HZ), ("mp3", "mp3", RATE_HZ), ("ogg", "libopus", 48_000), ("ipod", "aac", RATE_HZ),
     ("adts", "aac", RATE_HZ), ("aiff", "pcm_s16be", RATE_HZ)],
)  # fmt: skip
def test_every_container_of_sound_is_decoded(container: str, codec: str, rate_hz: int) -> None:
    found = decode_audio(sound_file(tone(1.0, rate_hz), container, codec, rate_hz), RATE_HZ)
    assert 0.95 * RATE_HZ < found.size < 1.15 * RATE_HZ
    spectrum = np.abs(np.fft.rfft(found))
    assert abs(spectrum.argmax() * RATE_HZ / found.size - 440) < 3


def test_frames_are_those_that_transformers_picks() -> None:
    data, num_frames, rate = video_file(20), 4, 3
    indices = np.linspace(0, num_frames * rate - 1, num=num_frames, dtype=np.int64)
    with av.open(io.BytesIO(data)) as container:
        expected = read_video_pyav(container, indices)
    np.testing.assert_array_equal(decode_video(data, num_frames, rate), expected)


def test_video_with_too_few_frames_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected at least 12 frames"):
        decode_video(video_file(8), 4, 3)


def test_long_recording_is_refused_by_its_header() -> None:
    data = wav_file(np.zeros(2 * 3600 * 100, np.float32), 100)
    with pytest.raises(InvalidInput, match="audio: expected at most 600 seconds"):
        decode_audio(data, RATE_HZ)


def test_samples_beyond_the_bound_are_refused() -> None:
    bounds = replace(DEFAULT_BOUNDS, max_seconds=0.1)
    # A stream of frames states no duration.
    with pytest.raises(InvalidInput, match=r"expected at most 0\.1 seconds"):
        decode_audio(sound_file(tone(1.0), "adts", "aac"), RATE_HZ, bounds=bounds)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"max_bytes": 100}, "at most 100 bytes"),
        ({"max_frame_pixels": 100}, "frames of up to 100 pixels"),
        ({"max_decoded_pixels": 1000}, "expected less to decode"),
        ({"max_picked_bytes": 1000}, "expected less to decode"),
    ],
)
def test_video_beyond_a_bound_is_refused(bounds: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        decode_video(VIDEO, 4, 2, bounds=replace(DEFAULT_BOUNDS, **bounds))


@pytest.mark.parametrize(
    "data",
    [b"", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n", b"ffconcat version 1.0\nfile '/etc/hostname'\n", b"{}"],
)
def test_file_that_names_others_is_refused(data: bytes) -> None:
    assert container_of(data) is None
    with pytest.raises(InvalidInput, match="got another one; convert it"):
        decode_audio(data, RATE_HZ)


def test_video_without_sound_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected a file with audio"):
        decode_audio(VIDEO, RATE_HZ)


@given(st.sampled_from([SOUND, VIDEO, sound_file(tone(0.2), "flac", "flac")]), st.data())
def test_damaged_file_is_decoded_or_invalid_input(data: bytes, draws: st.DataObject) -> None:
    damaged = bytearray(data[: draws.draw(st.integers(0, len(data)))])
    for _ in range(draws.draw(st.integers(0, 4))):
        if damaged:
            damaged[draws.draw(st.integers(0, min(200, len(damaged)) - 1))] = draws.draw(st.integers(0, 255))
    for decode in (lambda: decode_audio(bytes(damaged), RATE_HZ), lambda: decode_video(bytes(damaged), 2, 1)):
        try:
            found = decode()
        except InvalidInput:
            continue
        assert found.size
