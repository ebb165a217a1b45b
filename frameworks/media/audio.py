"""Decode audio within bounds to the samples that transformers' pipelines read: mono, at the model's rate."""

from typing import TYPE_CHECKING, Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.media.container import (
    DEFAULT_BOUNDS,
    MediaBounds,
    damaged,
    opened,
    prepare_decoder,
    reason_of,
    too_long,
)
from frameworks.media.kinds import Kind

if TYPE_CHECKING:
    from av import AudioResampler

Samples = np.ndarray[Any, np.dtype[np.float32]]

_RATES = (1_000, 768_000)
_MAX_CHANNELS = 16
_MAX_PACKETS = 500_000
_MAX_DAMAGED_PACKETS = 100
"""Players skip packets that cannot be decoded; files cut out of a stream begin with some."""
_KIND: Kind = "audio"


def decode_audio(data: bytes, sampling_rate: int, field: str, bounds: MediaBounds = DEFAULT_BOUNDS) -> Samples:
    """Return the samples of the first stream of audio, float32 [samples], mixed to one channel at `sampling_rate` Hz.

    Mixed and resampled as `ffmpeg -ac 1 -ar RATE -f f32le` does, which transformers calls. Raises InvalidInput with
    this `field`: for another format, beyond the bounds, damaged, without the extra `media`.
    """
    with opened(data, _KIND, field, bounds) as container:
        from av import AudioResampler
        from av.error import FFmpegError

        stream = container.streams.audio[0]
        _check_layout(stream.codec_context.sample_rate, stream.codec_context.channels, field)
        prepare_decoder(stream, bounds)
        writer = _Writer(AudioResampler("flt", "mono", sampling_rate), sampling_rate, field, bounds)
        num_damaged = 0
        for number, packet in enumerate(container.demux(stream)):
            if number >= _MAX_PACKETS:
                raise InvalidInput(field, f"expected at most {_MAX_PACKETS} packets, got more; encode it again")
            try:
                frames = packet.decode()
            except FFmpegError as error:
                num_damaged += 1
                if num_damaged > _MAX_DAMAGED_PACKETS:
                    raise damaged(_KIND, field, reason_of(error)) from None
                continue
            for frame in frames:
                writer.add(frame)
        writer.add(None)
        return writer.samples()


class _Writer:
    """Collects resampled samples up to the bound."""

    def __init__(self, resampler: "AudioResampler", sampling_rate: int, field: str, bounds: MediaBounds) -> None:
        self._resampler = resampler
        self._field, self._bounds = field, bounds
        self._room = bounds.max_seconds * sampling_rate + sampling_rate
        self._seconds = 0.0
        self._pieces: list[Samples] = []

    def add(self, frame: Any) -> None:
        """Resample a frame; None for the end. Raises InvalidInput beyond the bound."""
        if frame is not None:
            _check_layout(frame.sample_rate, frame.layout.nb_channels, self._field)
            self._seconds += frame.samples / frame.sample_rate
            if self._seconds > self._bounds.max_seconds:
                raise too_long(_KIND, self._field, self._bounds, "more")
        elif not self._seconds:
            return
        for piece in self._resampler.resample(frame):
            self._room -= piece.samples
            if self._room < 0:
                raise too_long(_KIND, self._field, self._bounds, "more")
            self._pieces.append(piece.to_ndarray()[0])

    def samples(self) -> Samples:
        """Return all samples. Raises InvalidInput for none, and for those that are no numbers."""
        samples: Samples = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.float32)
        if not samples.size:
            raise damaged(_KIND, self._field, "no samples")
        if not np.isfinite(samples).all():
            raise InvalidInput(self._field, "expected finite samples, got NaN or infinity; encode the file again")
        return samples


def _check_layout(rate: int, channels: int, field: str) -> None:
    if not _RATES[0] <= rate <= _RATES[1]:
        raise InvalidInput(field, f"expected {_RATES[0]} to {_RATES[1]} samples a second, got {rate}; resample it")
    if not 1 <= channels <= _MAX_CHANNELS:
        raise InvalidInput(field, f"expected 1 to {_MAX_CHANNELS} channels, got {channels}; mix them")
