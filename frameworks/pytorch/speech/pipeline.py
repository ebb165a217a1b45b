"""Read sounds for a model that writes their texts token by token, and finish the texts, with transformers' pipeline."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers.pipelines import AutomaticSpeechRecognitionPipeline

from frameworks.core.errors import InvalidInput
from frameworks.generation.speech.spec import INPUT_NAME, SpeechOptions, SpeechSound, SpeechSpec, SpeechText
from frameworks.pytorch.speech.word_times import token_times
from frameworks.pytorch.tasks.inputs import samples_of
from frameworks.pytorch.tasks.outputs import as_json
from frameworks.pytorch.tasks.pipelines import refusals
from frameworks.tasks.speech_windows import check_windows
from frameworks.tasks.types import TaskItem

_SHORTEST_S = 1e-3


class SpeechPipeline:
    """Implement TaskPipeline for a model with a SpeechSpec. Any thread may call it."""

    def __init__(self, pipeline: AutomaticSpeechRecognitionPipeline, spec: SpeechSpec, defaults: SpeechOptions) -> None:
        """`defaults`: of the model's generation_config.json."""
        self._pipeline = pipeline
        self._spec = spec
        self._defaults = defaults
        self._window_s: float = pipeline.feature_extractor.chunk_length
        # A tokenizer keeps its settings in itself while it decodes.
        self._lock = threading.Lock()

    def prepare(self, task_input: dict[str, Any], parameters: dict[str, Any]) -> list[TaskItem]:
        """As TaskPipeline.prepare: a row for each window that is transcribed by itself."""
        samples = samples_of(self._pipeline, task_input, parameters)
        seconds = len(samples) / self._pipeline.feature_extractor.sampling_rate
        window_s = parameters.get("chunk_length_s")
        if window_s is not None:
            check_windows(seconds, parameters)
            if window_s > self._window_s:
                raise InvalidInput(
                    "parameters.chunk_length_s",
                    f"expected at most {self._window_s:g}, which the encoder reads, got {window_s:g}; lower it",
                )
        if seconds < _SHORTEST_S:
            raise InvalidInput("audio", "expected at least a millisecond of sound, got less; send a longer one")
        windows = {name: parameters[name] for name in ("chunk_length_s", "stride_length_s") if name in parameters}
        with refusals():
            rows = list(self._pipeline.preprocess(samples, **windows))
        options = self._options(parameters)
        return [self._item(row, options, seconds) for row in rows]

    def finish(self, outputs: Sequence[SpeechText], parameters: dict[str, Any]) -> Any:
        """As TaskPipeline.finish: what the pipeline of transformers returns, and `segments` where they are wanted."""
        returned = parameters.get("return_timestamps", self._defaults.is_timed)
        options = {
            # Timestamps are no part of a text; a long sound has some in any case.
            "return_timestamps": returned or any(each.sound.options.is_timed for each in outputs),
            "return_language": parameters.get("return_language", False),
        }
        with self._lock, refusals():
            found = self._pipeline.postprocess([self._output(each) for each in outputs], **options)
            if not returned:
                _remove_times(found)
            if parameters.get("return_duration"):
                found["duration"] = outputs[0].sound.seconds
            if parameters.get("return_segments"):
                [text] = outputs
                found |= {"language": self._language_of(text), "segments": self._segments(text)}
            return as_json(found)

    def token_times(self, weights: "np.ndarray[Any, Any]", num_frames: int) -> tuple[float, ...]:
        """Return the second of each token of a window. `weights`: of attention, float32 [heads, tokens, states].
        `num_frames`: of the sound from the window on. Behind its end they are below 0.
        """
        heard = num_frames // self._spec.timestamps.frames_per_step
        # Twice, as transformers does it: that makes a difference where they are below 0.
        weights = weights[..., :heard][..., :heard]
        return token_times(torch.from_numpy(weights), self._pipeline.model.config.median_filter_width)

    def _item(self, row: Mapping[str, Any], options: SpeechOptions, seconds: float) -> TaskItem:
        features = row[INPUT_NAME][0].float().numpy()
        if features.shape[-1] > self._spec.timestamps.window_frames:
            # A long sound is divided by its timestamps.
            options = replace(options, is_timed=True)
        sound = SpeechSound(features, options, int(row["attention_mask"].sum()), seconds, row.get("stride"))
        return TaskItem(sound, features.shape[-1], None, features.nbytes)

    def _options(self, parameters: Mapping[str, Any]) -> SpeechOptions:
        """Return the options of a request; those that it does not name are the model's. Raises InvalidInput."""
        if parameters.get("return_segments") and parameters.get("chunk_length_s") is not None:
            raise InvalidInput(
                "parameters.return_segments", "expected false with chunk_length_s, got true; leave one of them out"
            )
        wants_times = parameters.get("return_timestamps", self._defaults.is_timed) or parameters.get("return_segments")
        given = {own: parameters[name] for name, own in _OPTIONS.items() if parameters.get(name) is not None}
        options = replace(self._defaults, is_timed=bool(wants_times), **given)
        if "temperature" in parameters:
            options = replace(options, temperatures=tuple(parameters["temperature"]))
        if parameters.get("prompt"):
            options = replace(options, prompt_ids=self._prompt_ids(parameters["prompt"]))
        if options.no_speech_threshold is not None and options.logprob_threshold is None:
            raise InvalidInput(
                "parameters.no_speech_threshold",
                "expected logprob_threshold too, got none; a window is left out where both say so",
            )
        wants_words = parameters.get("return_timestamps") == "word"
        if wants_words and not self._spec.timestamps.can_align:
            raise InvalidInput(
                "parameters.return_timestamps",
                'expected true or false, as generation_config.json of the model names no alignment_heads, got "word"',
            )
        if options.logprob_threshold is not None and (options.num_beams or 1) > 1:
            raise InvalidInput(
                "parameters.num_beams",
                "expected 1 with logprob_threshold, as beams have no mean; leave one of them out",
            )
        return replace(
            options,
            needs_scores=bool(parameters.get("return_segments")),
            needs_words=wants_words,
        )

    def _prompt_ids(self, prompt: str) -> tuple[int, ...]:
        """Return the tokens of a prompt with the one before it. Raises InvalidInput."""
        with self._lock, refusals():
            ids = tuple(self._pipeline.tokenizer.get_prompt_ids(prompt).tolist())
        most = self._spec.generation.max_context_tokens // 2 - 1
        if len(ids) > most:
            raise InvalidInput(
                "parameters.prompt", f"expected at most {most} tokens, got {len(ids)}; keep the end of the text"
            )
        return ids

    def _output(self, text: SpeechText) -> dict[str, Any]:
        """Return the output of the model for one row, as the pipeline reads it."""
        output: dict[str, Any] = {"tokens": torch.tensor([text.tokens], dtype=torch.long), "is_last": True}
        if text.sound.stride is not None:
            output["stride"] = text.sound.stride
        times_s = [each for segment in text.segments for each in segment.times_s]
        if times_s:
            output["token_timestamps"] = [torch.tensor(times_s)]
        if text.language_id is not None:
            output["lang_id"] = torch.tensor([text.language_id])
        return output

    def _language_of(self, text: SpeechText) -> str | None:
        known = {token_id: code for code, token_id in self._spec.language_ids.items()}
        return None if text.language_id is None else known.get(text.language_id)

    def _segments(self, text: SpeechText) -> list[dict[str, Any]]:
        """Return the parts of a text as OpenAI's verbose JSON has them, with times in seconds."""
        return [
            {
                "id": number,
                "seek": each.seek,
                "start": round(each.start_s, 3),
                "end": round(each.end_s, 3),
                "text": self._pipeline.tokenizer.decode(each.tokens, skip_special_tokens=True),
                "tokens": list(each.tokens),
                "temperature": each.temperature,
                "avg_logprob": each.avg_logprob,
                "compression_ratio": each.compression_ratio,
                "no_speech_prob": each.no_speech_prob,
            }
            for number, each in enumerate(text.segments)
        ]


_OPTIONS = {
    "language": "language",
    "task": "task",
    "compression_ratio_threshold": "compression_ratio_threshold",
    "logprob_threshold": "logprob_threshold",
    "no_speech_threshold": "no_speech_threshold",
    "condition_on_prev_tokens": "conditions_on_previous",
    "seed": "seed",
    "num_beams": "num_beams",
    "max_new_tokens": "max_new_tokens",
}
"""Parameter of a request → SpeechOptions."""


def _remove_times(found: dict[str, Any]) -> None:
    """Remove the times of parts, and parts that have nothing else."""
    chunks = [{name: value for name, value in each.items() if name != "timestamp"} for each in found.pop("chunks", ())]
    if any("language" in each for each in chunks):
        found["chunks"] = chunks
