"""Audio and video for tests: tones and moving squares, and files of them."""

import wave
from fractions import Fraction
from io import BytesIO
from typing import Any

import av
import numpy as np

from frameworks.core.errors import InvalidInput

Samples = np.ndarray[Any, np.dtype[np.int16]]
Frames = np.ndarray[Any, np.dtype[np.uint8]]


def tone(num_samples: int, num_channels: int = 1, rate: int = 16_000) -> Samples:
    """Return tones of 440 Hz and its multiples, int16 [samples, channels]."""
    times = np.arange(num_samples)[:, None] / rate
    waves = np.sin(2 * np.pi * 440 * times * np.arange(1, num_channels + 1))
    samples: Samples = (waves * 8_000).astype(np.int16)
    return samples


def wav(samples: Samples, rate: int = 16_000) -> bytes:
    """Return a WAV file of 16 bits, written by the standard library."""
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(samples.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def changing_tones(seconds: float, seed: int, rate: int = 16_000) -> bytes:
    """A file of tones that change, with noise."""
    random = np.random.default_rng(seed)
    count = int(seconds * rate)
    times = np.arange(count) / rate
    tones = sum(np.sin(2 * np.pi * random.uniform(80, 3000) * times * random.uniform(0.5, 2)) for _ in range(3))
    gates = np.repeat(random.uniform(0, 1, count // 2000 + 1), 2000)[:count]
    samples = 6000 * gates * tones + random.normal(0, 300, count)
    return wav(np.clip(samples, -32000, 32000).astype(np.int16)[:, None])


def encoded_audio(samples: Samples, container: str, codec: str, rate: int = 16_000) -> bytes:
    """Return a file of one channel. `container`, `codec`: names of ffmpeg."""
    file = BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[:, :1].T), format="s16", layout="mono")
        frame.sample_rate = rate
        for given in (frame, None):
            output.mux(stream.encode(given))
    return file.getvalue()


def moving_square(num_frames: int, height: int = 48, width: int = 64) -> Frames:
    """Return frames of a square that moves over grey, uint8 [frames, height, width, 3]."""
    frames = np.full((num_frames, height, width, 3), 90, np.uint8)
    for number in range(num_frames):
        frames[number, 8:24, number % 40 : number % 40 + 16] = (220, 30 + number, 60)
    return frames


def encoded_video(frames: Frames, container: str = "mp4", codec: str = "mpeg4", rate: int = 10) -> bytes:
    """Return a file without sound. `container`, `codec`: names of ffmpeg."""
    file = BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=Fraction(rate))
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for pixels in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def check_refusal(error: InvalidInput, field: str) -> None:
    """Check that an error has the field and the grammar of all errors."""
    assert error.field == field
    assert ", got " in error.reason
    assert "; " in error.reason
