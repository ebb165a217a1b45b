"""Transcribe a sound window by window, as the long-form algorithm of Whisper does (https://arxiv.org/abs/2212.04356).

The rules are those of transformers' `WhisperGenerationMixin.generate`, for one sound: which tokens a window begins
with, when a text is made again at a higher temperature, into which segments its timestamps divide it, and where the
next window begins.
"""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from frameworks.generation.speech.spec import (
    Features,
    SpeechSegment,
    SpeechSound,
    SpeechSpec,
    SpeechText,
    TimestampSpec,
)

_LOW_TEMPERATURE = 0.5
"""From here on a text does not prepare the next window."""


class WindowText(NamedTuple):
    """The text of one window at one temperature. `tokens`: with the one that ended it. `avg_logprob`: of these.
    `times_s`: of each token, within the window; empty where they were not asked for.
    """

    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float | None = None
    no_speech_prob: float | None = None
    times_s: tuple[float, ...] = ()


class Transcription:
    """The state of one sound: the next window, and the segments before it."""

    def __init__(self, spec: SpeechSpec, sound: SpeechSound) -> None:
        self.spec = spec
        self.options = sound.options
        self.segments: list[SpeechSegment] = []
        language = sound.options.language
        self.language_id = None if language is None else spec.language_ids[language]
        """The token of the language, once it is known; None for a model without languages."""
        self.seek = 0
        """The first frame of the next window."""
        self._sound = sound
        self._num_frames: int = sound.features.shape[-1]
        self._conditions = sound.options.conditions_on_previous
        # transformers raises it with each window, up to the positions of the decoder.
        self._max_length = spec.max_length
        # A prompt is what the first window would follow.
        prompt = sound.options.prompt_ids
        self._before: list[tuple[int, ...]] = (
            [prompt[1:] if prompt[0] == spec.previous_id else prompt] if prompt else []
        )

    @property
    def heard_frames(self) -> int:
        """Return the frames of the sound from the next window on, without padding; below 0 behind its end."""
        return self._sound.heard_frames - self.seek

    @property
    def text(self) -> SpeechText:
        """The text so far."""
        return SpeechText(self._sound, tuple(self.segments), self.language_id)

    @property
    def is_done(self) -> bool:
        """Whether all windows are transcribed."""
        return self.seek >= self._num_frames

    @property
    def _window_frames(self) -> int:
        return min(self._num_frames - self.seek, self.spec.timestamps.window_frames)

    def window(self) -> Features:
        """Return the features of the next window, with zeros behind the end of the sound."""
        features = self._sound.features[:, self.seek : self.seek + self._window_frames]
        padding = self.spec.timestamps.window_frames - features.shape[-1]
        return np.pad(features, ((0, 0), (0, padding))) if padding else features

    def init_ids(self) -> tuple[int, ...]:
        """Return the tokens after which a text begins."""
        spec, options = self.spec, self.options
        ids: list[int | None] = [*spec.start_ids]
        if options.language is None and options.task is None:
            ids += spec.default_ids
        if self.language_id is not None:
            ids[1:2] = [self.language_id]
        if options.task is not None:
            ids = [each for each in ids if each not in spec.task_ids.values()] + [spec.task_ids[options.task]]
        elif options.language is not None and spec.task_ids and not set(ids) & set(spec.task_ids.values()):
            ids.append(spec.task_ids["transcribe"])
        ids = [each for each in ids if each != spec.timestamps.untimed_id]
        ids += [] if options.is_timed else [spec.timestamps.untimed_id]
        return tuple(each for each in ids if each is not None)

    def decoder_prompt(self, init_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens of the decoder that the text of the next window follows."""
        spec = self.spec
        if self._conditions and self._before:
            most = spec.generation.max_context_tokens // 2 - 1
            before = [token for tokens in self._before for token in self._without_repeat(tokens)]
            previous = () if spec.previous_id is None else (spec.previous_id,)
            return (*previous, *before[-most:], *init_ids)
        return (*self.options.prompt_ids, *init_ids)

    def _without_repeat(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return a segment's tokens without the timestamp that repeats the one before it."""
        repeats = len(tokens) > 2 and tokens[-2] >= self.spec.timestamps.first_id
        return tokens[:-1] if repeats else tokens

    def max_tokens(self, decoder_prompt: tuple[int, ...]) -> int:
        """Return how many tokens the text of the next window may have."""
        positions = self.spec.generation.max_context_tokens
        if self.options.max_new_tokens is not None:
            return max(1, min(self.options.max_new_tokens, positions - len(decoder_prompt)))
        added = min(positions // 2 - 1, len(decoder_prompt))
        self._max_length = min(self._max_length + added, positions)
        return max(1, self._max_length - len(decoder_prompt))

    def is_rejected(self, text: WindowText) -> bool:
        """Return whether a text should be made again at a higher temperature."""
        options = self.options
        if self.is_silent(text):
            return False
        is_repetitive = (
            options.compression_ratio_threshold is not None
            and self.compression_ratio(text.tokens) > options.compression_ratio_threshold
        )
        return is_repetitive or self.is_unlikely(text)

    def is_unlikely(self, text: WindowText) -> bool:
        """Return whether the log probability of a text is below the threshold."""
        threshold = self.options.logprob_threshold
        return threshold is not None and text.avg_logprob is not None and text.avg_logprob < threshold

    def is_silent(self, text: WindowText) -> bool:
        """Return whether the window has no speech: it gets no text."""
        threshold, found = self.options.no_speech_threshold, text.no_speech_prob
        return threshold is not None and found is not None and found > threshold and self.is_unlikely(text)

    def compression_ratio(self, tokens: Sequence[int]) -> float:
        """Return the bytes of the tokens, divided by those of their compressed form."""
        size = int(math.log2(self.spec.generation.vocabulary_size) / 8) + 1
        data = b"".join([token.to_bytes(size, "little") for token in tokens])
        return len(data) / len(zlib.compress(data))

    def take(self, text: WindowText) -> None:
        """Divide the text of the next window into segments, and go on to the window after it."""
        self._conditions = self.options.conditions_on_previous and text.temperature < _LOW_TEMPERATURE
        if self.is_silent(text):
            self.seek += self._window_frames
            return
        ratio = self.compression_ratio(text.tokens)
        ends = self.spec.generation.eos_token_ids
        tokens = text.tokens[:-1] if text.tokens and text.tokens[-1] in ends else text.tokens
        divided, num_frames = _divide(tokens, self._window_frames, self.spec.timestamps)
        offset_s = self.seek * self.spec.timestamps.step_s / self.spec.timestamps.frames_per_step
        first = 0
        for start_s, end_s, part in divided:
            times_s = tuple(offset_s + each for each in text.times_s[first : first + len(part)])
            first += len(part)
            self.segments.append(
                SpeechSegment(
                    offset_s + start_s,
                    offset_s + end_s,
                    part,
                    self.seek,
                    text.temperature,
                    ratio,
                    text.avg_logprob,
                    text.no_speech_prob,
                    times_s,
                )
            )
            self._before.append(part)
        # A window that begins where the last one did would never end.
        self.seek += max(1, num_frames)


_Part = tuple[float, float, tuple[int, ...]]


def _divide(tokens: tuple[int, ...], num_frames: int, spec: TimestampSpec) -> tuple[list[_Part], int]:
    """Return the parts of a window's text, as (first second, last second, tokens), and the frames that it covers.

    `num_frames`: of the window. Two timestamps in a row end a part; what follows the last pair is heard again by the
    next window, unless a single timestamp ends the text.
    """
    first, step_s = spec.first_id, spec.step_s
    are_timestamps = [token >= first for token in tokens]
    pairs = [i + 1 for i in range(len(tokens) - 1) if are_timestamps[i] and are_timestamps[i + 1]]
    if not pairs:
        last = num_frames // spec.frames_per_step
        found = [token for token in tokens if token >= first]
        if found and found[-1] != first:
            last = found[-1] - first
        return [(0.0, last * step_s, tokens)], num_frames
    has_single_end = are_timestamps[-2:] == [False, True]
    if has_single_end:
        pairs.append(len(tokens))
    else:
        pairs[-1] += 1
    parts: list[_Part] = []
    begin = 0
    for number, end in enumerate(pairs):
        part = tokens[begin:end]
        # The last part has both timestamps of its pair.
        is_paired = number == len(pairs) - 1 and not has_single_end
        parts.append(((part[0] - first) * step_s, (part[-2 if is_paired else -1] - first) * step_s, part))
        begin = end
    return parts, num_frames if has_single_end else (tokens[begin - 2] - first) * spec.frames_per_step
