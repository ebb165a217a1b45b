"""Encode samples of speech as a file: at once, or piece by piece while it is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from frameworks.media.audio import Samples
from frameworks.media.wav import UNKNOWN_BYTES, integer_wav_header, to_int16

SoundFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

PCM_RATE_HZ = 24_000
"""Raw samples do not name their rate: it is that of OpenAI's."""
_FRAME_S = 1
_MPEG_RATES = frozenset({8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000})


@dataclass(frozen=True, slots=True)
class _Encoding:
    """`container`, `codec`: names of FFmpeg; none for integers of 16 bits. `rates`: in Hz; none for any.

    `bits`: of a second.
    """

    content_type: str
    container: str = ""
    codec: str = ""
    rates: frozenset[int] = frozenset()
    bits: int | None = None


_ENCODINGS: Mapping[SoundFormat, _Encoding] = MappingProxyType(
    {
        "mp3": _Encoding("audio/mpeg", "mp3", "libmp3lame", _MPEG_RATES, 64_000),
        "opus": _Encoding("audio/ogg", "ogg", "libopus", frozenset({8000, 12_000, 16_000, 24_000, 48_000}), 32_000),
        "aac": _Encoding("audio/aac", "adts", "aac", _MPEG_RATES, 64_000),
        "flac": _Encoding("audio/flac", "flac", "flac"),
        "wav": _Encoding("audio/wav"),
        "pcm": _Encoding("audio/pcm", rates=frozenset({PCM_RATE_HZ})),
    }
)


def content_type_of(sound_format: SoundFormat) -> str:
    """Return the media type of files in a format."""
    return _ENCODINGS[sound_format].content_type


def encode_sound(samples: Samples, rate_hz: int, sound_format: SoundFormat) -> bytes:
    """Return a whole file of one channel. `samples`: float32 [samples]."""
    encoder = SoundEncoder(rate_hz, sound_format, is_whole=True)
    return encoder.encode(samples) + encoder.end()


class SoundEncoder:
    """Encode one sound of one channel, piece by piece. One thread at a time calls it.

    A sound at a rate that the format does not have is resampled. Needs PyAV, but for WAV.
    """

    def __init__(self, rate_hz: int, sound_format: SoundFormat, is_whole: bool = False) -> None:
        """`is_whole`: the first piece is the whole sound, and its length is written into the head of the file."""
        encoding = _ENCODINGS[sound_format]
        self._rate_hz = rate_hz
        self._is_whole = is_whole
        rates = encoding.rates
        self._target_hz = rate_hz if not rates or rate_hz in rates else PCM_RATE_HZ
        self._needs_header = sound_format == "wav"
        self._resampler: Any = None
        self._container: Any = None
        self._sink = BytesIO() if is_whole else _Sink()
        if encoding.container:
            import av

            self._container = av.open(self._sink, "w", format=encoding.container)
            self._stream = self._container.add_stream(encoding.codec, rate=self._target_hz, layout="mono")
            if encoding.bits is not None:
                self._stream.bit_rate = encoding.bits
        elif self._target_hz != rate_hz:
            import av

            self._resampler = av.AudioResampler(format="flt", layout="mono", rate=self._target_hz)

    def encode(self, samples: Samples) -> bytes:
        """Return the bytes that the next samples add, float32 [samples]; often none of the last ones."""
        samples = np.nan_to_num(samples, nan=0.0).clip(-1.0, 1.0)
        if self._container is not None:
            for frame in self._frames(samples):
                self._container.mux(self._stream.encode(frame))
            return self._sink.take() if isinstance(self._sink, _Sink) else b""
        data = self._resampled(samples)
        if not self._needs_header:
            return data
        self._needs_header = False
        return integer_wav_header(self._target_hz, len(data) if self._is_whole else UNKNOWN_BYTES) + data

    def end(self) -> bytes:
        """Return the last bytes, and release the encoder."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            return self._sink.getvalue() if isinstance(self._sink, BytesIO) else self._sink.take()
        if self._resampler is None:
            return b""
        return b"".join(to_int16(frame.to_ndarray()[0]) for frame in self._resampler.resample(None))

    def _frames(self, samples: Samples) -> Any:
        import av

        for at in range(0, len(samples), _FRAME_S * self._rate_hz):
            piece = samples[None, at : at + _FRAME_S * self._rate_hz]
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece, np.float32), format="flt", layout="mono")
            frame.sample_rate = self._rate_hz
            yield frame

    def _resampled(self, samples: Samples) -> bytes:
        if self._resampler is None:
            return to_int16(samples)
        found = (each for frame in self._frames(samples) for each in self._resampler.resample(frame))
        return b"".join(to_int16(each.to_ndarray()[0]) for each in found)


class _Sink:
    """A file that cannot be rewound, from which the bytes so far are taken."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken
