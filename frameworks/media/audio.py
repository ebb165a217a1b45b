"""Decode sound to samples of one channel at the rate of a model, as ffmpeg does for transformers' pipelines."""

from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.media.containers import DEFAULT_BOUNDS, MediaBounds, opened

Samples = np.ndarray[Any, np.dtype[np.float32]]

_MAX_RATE_HZ = 768_000
_MAX_CHANNELS = 32
_SECOND = 1_000_000
"""Units of a container's duration."""


def decode_audio(data: bytes, rate_hz: int, field: str = "audio", bounds: MediaBounds = DEFAULT_BOUNDS) -> Samples:
    """Return the samples of the first stream, float32 [samples], mixed to one channel and resampled to `rate_hz`.

    Raises InvalidInput with this `field`: for another format, beyond the bounds, without sound, and damaged.
    """
    with opened(data, "audio", field, bounds) as container:
        # The caller has imported it.
        from av import AudioResampler

        stream = container.streams.audio[0]
        _check_stream(stream.codec_context, field)
        if container.duration is not None and container.duration > bounds.max_seconds * _SECOND:
            raise _too_long(field, bounds, container.duration / _SECOND)
        most = int(bounds.max_seconds * rate_hz)
        resampler = AudioResampler(format="flt", layout="mono", rate=rate_hz)
        pieces: list[Samples] = []
        count = 0
        # The duration of a container may be false: the samples are counted.
        for frame in container.decode(stream):
            for piece in resampler.resample(frame):
                pieces.append(piece.to_ndarray()[0])
                count += piece.samples
            if count > most:
                raise _too_long(field, bounds, count / rate_hz)
        pieces += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    if not samples.size:
        raise InvalidInput(field, "expected sound, got a file without samples; send another one")
    if not np.isfinite(samples).all():
        raise InvalidInput(field, "expected finite samples, got NaN or infinity; encode it again")
    return samples


def _check_stream(context: Any, field: str) -> None:
    if not 1 <= context.sample_rate <= _MAX_RATE_HZ or not 1 <= context.channels <= _MAX_CHANNELS:
        raise InvalidInput(
            field,
            f"expected at most {_MAX_RATE_HZ} Hz and {_MAX_CHANNELS} channels, got {context.sample_rate} Hz and "
            f"{context.channels} channels; convert it",
        )


def _too_long(field: str, bounds: MediaBounds, seconds: float) -> InvalidInput:
    return InvalidInput(
        field, f"expected at most {bounds.max_seconds:g} seconds, got {seconds:.1f} or more; split the recording"
    )
