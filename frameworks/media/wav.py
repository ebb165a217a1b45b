"""Write samples as WAV files: float32, which loses nothing, or 16 bits. Read those of float32 again. Needs no PyAV."""

from struct import Struct

import numpy as np

from frameworks.media.audio import Samples

_FLOAT, _INTEGER = 3, 1
_HEADER = Struct("<4sI4s4sIHHIIHH4sI")
UNKNOWN_BYTES = 0xFFFFFFFF
"""The length in the header of a file that is sent while it is written."""


def float_wav(samples: Samples, rate_hz: int) -> bytes:
    """Return a WAV file of one channel. `samples`: float32 [samples]."""
    data = np.ascontiguousarray(samples, "<f4").tobytes()
    return _header(_FLOAT, 4, rate_hz, len(data)) + data


def integer_wav_header(rate_hz: int, data_bytes: int) -> bytes:
    """Return the head of a WAV file of one channel with samples of 16 bits."""
    return _header(_INTEGER, 2, rate_hz, data_bytes)


def read_float_wav(file: bytes) -> tuple[Samples, int]:
    """Return the samples, float32 [samples], and the rate in Hz of a file of `float_wav`."""
    fields = _HEADER.unpack_from(file)
    assert fields[5] == _FLOAT, "another WAV file"
    samples: Samples = np.frombuffer(file, "<f4", offset=_HEADER.size)
    return samples, fields[7]


def to_int16(samples: Samples) -> bytes:
    """Return samples of -1 to 1 as integers of 16 bits, little endian. Others are cut; NaN becomes 0."""
    scaled = np.clip(np.nan_to_num(samples, nan=0.0), -1.0, 1.0) * 32767.0
    data: bytes = np.round(scaled).astype("<i2").tobytes()
    return data


def _header(kind: int, sample_bytes: int, rate_hz: int, data_bytes: int) -> bytes:
    whole = min(UNKNOWN_BYTES, data_bytes + _HEADER.size - 8)
    return _HEADER.pack(
        b"RIFF", whole, b"WAVE", b"fmt ", 16, kind, 1, rate_hz, rate_hz * sample_bytes, sample_bytes,
        8 * sample_bytes, b"data", data_bytes,
    )  # fmt: skip
