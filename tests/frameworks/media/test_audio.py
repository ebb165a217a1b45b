"""Decoding of audio: the samples of the file, and a refusal that names the field for every other one."""

from struct import pack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import InvalidInput
from frameworks.media import container
from frameworks.media.audio import decode_audio
from frameworks.media.container import MediaBounds
from tests.support.media import check_refusal, encoded_audio, encoded_video, moving_square, tone, wav

RATE = 16_000
SECOND = wav(tone(RATE))


def refusal(data: bytes, bounds: MediaBounds | None = None) -> str:
    with pytest.raises(InvalidInput) as raised:
        decode_audio(data, RATE, "audio[1]", bounds or MediaBounds())
    assert raised.value.field == "audio[1]"
    return raised.value.reason


def test_wav_samples_equal_its_numbers() -> None:
    decoded = decode_audio(SECOND, RATE, "audio")
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, tone(RATE)[:, 0].astype(np.float32) / 32_768)


def test_stereo_mixed_as_ffmpeg_does() -> None:
    both = tone(RATE, 2)
    # Without normalisation, as the result is float: each channel counts by the root of one half.
    expected = both.astype(np.float64).sum(axis=1) / 32_768 * np.sqrt(0.5)
    np.testing.assert_allclose(decode_audio(wav(both), RATE, "audio"), expected, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
def test_other_rate_resampled_to_same_tone(rate: int) -> None:
    decoded = decode_audio(wav(tone(rate, rate=rate), rate), RATE, "audio")
    assert abs(len(decoded) - RATE) <= 32
    inside = slice(1_000, 15_000)
    np.testing.assert_allclose(decoded[inside], tone(RATE)[inside, 0] / 32_768, atol=2e-3)


@pytest.mark.parametrize(
    ("form", "codec"),
    [("flac", "flac"), ("mp3", "libmp3lame"), ("ogg", "libopus"), ("mp4", "aac"), ("adts", "aac"),
     ("aiff", "pcm_s16be"), ("webm", "libopus")],
)  # fmt: skip
def test_format_decoded_to_same_tone(form: str, codec: str) -> None:
    rate = 48_000 if codec == "libopus" else RATE
    decoded = decode_audio(encoded_audio(tone(rate, rate=rate), form, codec, rate), RATE, "audio")
    assert RATE - 100 < len(decoded) < RATE + 4_000
    spectrum = np.abs(np.fft.rfft(decoded[4_000:12_000]))
    assert spectrum.argmax() == 220  # 440 Hz in half a second


def test_bounds_checked_before_decoding() -> None:
    assert "at most 10 bytes, got a file of" in refusal(SECOND, MediaBounds(max_bytes=10))
    two = wav(np.zeros((2 * RATE + 1600, 1), np.int16))
    assert refusal(two, MediaBounds(max_seconds=2)).startswith("expected at most 2 seconds of audio, got 2")
    assert "samples a second, got 1;" in refusal(wav(tone(RATE), 1), MediaBounds(max_seconds=100_000))
    assert "1 to 16 channels, got 20" in refusal(wav(np.zeros((100, 20), np.int16)))


def test_lying_duration_is_cut_off() -> None:
    data = encoded_audio(tone(3 * 48_000, rate=48_000), "webm", "libopus", 48_000)
    assert "at most 1 seconds of audio, got 3;" in refusal(data, MediaBounds(max_seconds=1))
    mark = b"\x44\x89\x88"  # Duration, in 8 bytes
    at = data.index(mark) + len(mark)
    lying = data[:at] + pack(">d", 100.0) + data[at + 8 :]
    assert "at most 1 seconds of audio, got more;" in refusal(lying, MediaBounds(max_seconds=1))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"hello", "other bytes"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "other bytes"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "other bytes"),
        (b"v=0\no=- 0 0 IN IP4 127.0.0.1\n", "other bytes"),
        (b"RIFF\x24\0\0\0WAVE", "expected a whole audio file"),
        (SECOND[:44], "expected a whole audio file"),
        (b"ID3" + b"#EXTM3U\nhttp://127.0.0.1/x\n" * 9, "expected a "),
        (encoded_video(moving_square(3)), "expected a file with a stream of audio, got one without"),
        (b"RIFF" + pack("<I", 60) + b"WAVEfmt " + pack("<IHHIIHH", 16, 3, 1, RATE, RATE * 4, 4, 32)
         + b"data" + pack("<I", 8) + pack("<ff", float("nan"), 0.0), "expected finite samples"),
    ],
)  # fmt: skip
def test_other_bytes_refused(data: bytes, found: str) -> None:
    assert found in refusal(data)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "find_spec", lambda name: None)
    assert refusal(SECOND).startswith("expected the extra media, got none; ")


FILES = [
    wav(tone(2_000)), encoded_audio(tone(2_000), "flac", "flac"), encoded_audio(tone(4_000), "mp3", "libmp3lame"),
    encoded_audio(tone(4_800, rate=48_000), "ogg", "libopus", 48_000), encoded_audio(tone(4_000), "mp4", "aac"),
    encoded_audio(tone(4_800, rate=48_000), "webm", "libopus", 48_000),
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_damaged_file_decoded_or_refused(data: bytes, changes: list[tuple[int, int]], keep: float) -> None:
    damaged = bytearray(data)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    bounds = MediaBounds(max_seconds=5)
    for given_bytes in (bytes(damaged), bytes(damaged[: int(keep * len(damaged))])):
        try:
            assert decode_audio(given_bytes, RATE, "audio", bounds).size <= 6 * RATE
        except InvalidInput as error:
            check_refusal(error, "audio")
