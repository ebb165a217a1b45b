"""Sounds are encoded to files that FFmpeg reads, whole and in pieces."""

import io
from typing import Any, get_args

import av
import numpy as np
import pytest

from frameworks.media.audio import decode_audio
from frameworks.media.encoding import SoundEncoder, SoundFormat, content_type_of, encode_sound
from frameworks.media.wav import float_wav, read_float_wav, to_int16

FORMATS = get_args(SoundFormat)
SECONDS = 1.7
# Most samples of silence that an encoder adds, beside one of rounding: those of its frames.
PADDING = {"mp3": 2400, "opus": 1400, "aac": 2200}


def tone(rate_hz: int) -> Any:
    """Return samples of 440 Hz, float32 [samples]."""
    at_s = np.arange(int(SECONDS * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * 440 * at_s)).astype(np.float32)


def decoded(data: bytes, sound_format: str) -> tuple[Any, int]:
    if sound_format == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32767, 24_000
    with av.open(io.BytesIO(data)) as container:
        rate_hz = container.streams.audio[0].rate
    return decode_audio(data, rate_hz, "audio"), rate_hz


def pitch(samples: Any, rate_hz: int) -> float:
    """Return the loudest frequency in Hz."""
    return float(np.abs(np.fft.rfft(samples)).argmax() * rate_hz / len(samples))


@pytest.mark.parametrize("pieces", [0, 1, 7])
@pytest.mark.parametrize("rate_hz", [8000, 11_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("sound_format", FORMATS)
def test_file_of_format_has_the_sound(sound_format: SoundFormat, rate_hz: int, pieces: int) -> None:
    sound = tone(rate_hz)
    if pieces:
        encoder = SoundEncoder(rate_hz, sound_format)
        data = b"".join([*map(encoder.encode, np.array_split(sound, pieces)), encoder.end()])
    else:
        data = encode_sound(sound, rate_hz, sound_format)
    found, found_hz = decoded(data, sound_format)
    assert -2 <= len(found) - SECONDS * found_hz <= PADDING.get(sound_format, 2)
    assert pitch(found, found_hz) == pytest.approx(440, abs=2)
    assert np.std(found) == pytest.approx(np.std(sound), rel=0.1)


@pytest.mark.parametrize("sound_format", ["wav", "flac"])
def test_lossless_formats_keep_samples_of_16_bits(sound_format: SoundFormat) -> None:
    sound = tone(16_000)
    found, _ = decoded(encode_sound(sound, 16_000, sound_format), sound_format)
    np.testing.assert_allclose(found, sound, rtol=0, atol=1e-4)


@pytest.mark.parametrize("sound_format", FORMATS)
def test_samples_beyond_bounds_are_cut(sound_format: SoundFormat) -> None:
    wild = tone(16_000) * 8
    wild[100] = np.nan
    wild[200] = np.inf
    found, _ = decoded(encode_sound(wild, 16_000, sound_format), sound_format)
    assert np.isfinite(found).all()
    # A number that wraps around would turn the loudest samples over.
    assert np.std(found) == pytest.approx(np.std(np.clip(np.nan_to_num(wild), -1, 1)), rel=0.15)


@pytest.mark.parametrize("sound_format", FORMATS)
def test_sound_of_no_samples_is_a_file(sound_format: SoundFormat) -> None:
    assert isinstance(encode_sound(np.zeros(0, np.float32), 16_000, sound_format), bytes)
    assert content_type_of(sound_format).startswith("audio/")


def test_float_wav_keeps_every_bit() -> None:
    sound = tone(22_050) * 3
    file = float_wav(sound, 22_050)
    samples, rate_hz = read_float_wav(file)
    assert rate_hz == 22_050
    np.testing.assert_array_equal(samples, sound)
    np.testing.assert_array_equal(decode_audio(file, 22_050, "audio"), sound)


def test_int16_is_little_endian_and_cut() -> None:
    given = np.array([0, 1, -1, 2, np.nan, 0.5], np.float32)
    assert np.frombuffer(to_int16(given), "<i2").tolist() == [0, 32767, -32767, 32767, 0, 16384]
