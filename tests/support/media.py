"""Make files of sound and video, by PyAV and the standard library."""

import io
import wave
from typing import Any

import av
import numpy as np

from frameworks.types import Array

RATE_HZ = 16_000


def tone(seconds: float, rate_hz: int = RATE_HZ, hertz: float = 440.0) -> Array:
    """Return a sine, float32 [samples]."""
    samples: Array = 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate_hz)) / rate_hz)
    return samples.astype(np.float32)


def wav_file(samples: Array, rate_hz: int = RATE_HZ) -> bytes:
    """Return a WAV file of 16-bit samples. `samples`: float32 [samples] or [samples, channels]."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(rate_hz)
        writer.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


def sound_file(samples: Array, container: str, codec: str, rate_hz: int = RATE_HZ) -> bytes:
    """Return samples, float32 [samples], in a container of ffmpeg."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate_hz, layout="mono")
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = rate_hz
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    return file.getvalue()


def video_file(num_frames: int, height: int = 48, width: int = 64) -> bytes:
    """Return an MP4 file whose frames become brighter by 5 levels each."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream: Any = output.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(num_frames):
            pixels = np.full((height, width, 3), min(255, 5 * number), np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                output.mux(packet)
        for packet in stream.encode(None):
            output.mux(packet)
    return file.getvalue()
