"""How a model with an encoder of sounds makes texts, and the requests and texts of its sounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from frameworks.generation.sources import SourcePrompt, source_of_inputs
from frameworks.generation.types import GenerationSpec

INPUT_NAME = "input_features"
"""Of the encoder, as transformers names its features."""
Features = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class TimestampSpec:
    """The tokens and the windows of a model with timestamps.

    `first_id`: the token of 0 s. `max_initial`: as TimestampRules. `window_frames`: of features, in a window.
    `frames_per_step`: of features, from one timestamp to the next. `step_s`: seconds from one to the next.
    `can_align`: whether the attention of the model says when a word is spoken.
    """

    first_id: int
    window_frames: int
    frames_per_step: int
    step_s: float
    max_initial: int | None = None
    can_align: bool = False

    @property
    def untimed_id(self) -> int:
        """The token after which a text has no timestamps."""
        return self.first_id - 1

    @property
    def no_speech_id(self) -> int:
        """The token of a window without speech."""
        return self.first_id - 2


@dataclass(frozen=True, slots=True)
class SpeechSpec:
    """How a model with an encoder of sounds makes texts.

    `generation`: of the decoder: its context, end tokens and sampling. `start_ids`: begin each text; its language and
    its task may follow. `block_tokens`, `num_blocks`: of the KV cache. `max_length`: tokens of a text with those before
    it. `feature_shape`: of a window, [channels, frames]. `source_tokens`: states that the encoder returns for it.
    `default_ids`: tokens of the language and the task where a request names neither; None: the language is detected.
    `language_ids`: by code. `task_ids`: of `transcribe` and `translate`. `previous_id`: precedes the text before.
    """

    generation: GenerationSpec
    timestamps: TimestampSpec
    start_ids: tuple[int, ...]
    block_tokens: int
    num_blocks: int
    max_length: int
    feature_shape: tuple[int, int]
    source_tokens: int
    default_ids: tuple[int | None, ...] = ()
    language_ids: Mapping[str, int] = field(default_factory=dict, hash=False)
    task_ids: Mapping[str, int] = field(default_factory=dict, hash=False)
    previous_id: int | None = None

    @property
    def detects_language(self) -> bool:
        """Whether the language of a sound is found where a request names none."""
        return bool(self.language_ids) and self.default_ids[:1] in ((), (None,))

    def source_of(self, features: Features) -> SourcePrompt:
        """Return the source of a window, float32 [channels, frames], which tokens of the decoder follow."""
        return source_of_inputs({INPUT_NAME: features[None]}, self.source_tokens, self.block_tokens)

    def example_prompt(self) -> SourcePrompt:
        """Return the prompt of a silent sound, for the warm-up."""
        return self.source_of(np.zeros(self.feature_shape, np.float32)).followed_by(self.start_ids)


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """The options of a request for a text of speech.

    `language`: its code; None: it is detected, where the model can. `task`: None: the model's own. `is_timed`: whether
    the text has timestamps. `temperatures`: of one attempt after another, for as long as a threshold says so.
    `compression_ratio_threshold`: a text whose tokens are compressed by more repeats itself. `logprob_threshold`: of
    the mean log probability of a token. `no_speech_threshold`: of a window that is left out where the text is also
    below that. `conditions_on_previous`: whether a window knows the text of those before. `prompt_ids`: a text that
    the first window continues, with the token before it. `seed`: of sampled texts; None: a new one. `num_beams`: None:
    the model's own. `needs_scores`: whether the answer has the log probability of each segment, and that of no speech.
    `needs_words`: whether it has the times of words.
    """

    language: str | None = None
    task: str | None = None
    is_timed: bool = False
    temperatures: tuple[float, ...] = (0.0,)
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    conditions_on_previous: bool = False
    prompt_ids: tuple[int, ...] = ()
    seed: int | None = None
    num_beams: int | None = None
    max_new_tokens: int | None = None
    needs_scores: bool = False
    needs_words: bool = False


class SpeechSound(NamedTuple):
    """A sound, or a part of it, as the model reads it: float32 [channels, frames].

    `heard_frames`: those before the padding. `seconds`: of the whole sound. `stride`: of a part, its samples, and those
    that it shares with its neighbours on the left and on the right; None for a whole sound.
    """

    features: Features
    options: SpeechOptions
    heard_frames: int
    seconds: float
    stride: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """A part of a text with its times in seconds. `tokens`: with timestamps. `avg_logprob`: of a token of the window's
    text, None where it was not asked for. `seek`: the first frame of its window. `times_s`: of each token, if it was
    asked for.
    """

    start_s: float
    end_s: float
    tokens: tuple[int, ...]
    seek: int
    temperature: float
    compression_ratio: float
    avg_logprob: float | None = None
    no_speech_prob: float | None = None
    times_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeechText:
    """The text of a sound. `language_id`: the token of its language; None where the text has none."""

    sound: SpeechSound
    segments: tuple[SpeechSegment, ...]
    language_id: int | None

    @property
    def tokens(self) -> list[int]:
        """The tokens of all segments."""
        return [token for segment in self.segments for token in segment.tokens]
