"""Check an encoder-decoder over blocks against transformers' own forward pass."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.sources import SourcePrompt, SourceSpec
from frameworks.generation.types import Sampling
from frameworks.pytorch.device_errors import RUN_ERRORS, map_device_error
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.encoder_decoder.decoder import encoder_input
from frameworks.pytorch.generation.encoder_decoder.runner import EncoderDecoderRunner
from frameworks.pytorch.generation.step.shape import NotPaged
from frameworks.quantization.comparison import row_cosines
from frameworks.scheduling.steps.sequence import Sequence, StepPart
from frameworks.types import DEFAULT_PRIORITY, QuantizationReport

# Two sources, of which the first ends within a block and the second takes two.
_SOURCES = (BLOCK_TOKENS - 5, BLOCK_TOKENS + 9)
# Several tokens at once, twice, then single ones, across the border of two blocks.
_PARTS = (5, BLOCK_TOKENS - 6, 1, 1, 1)
_ROUNDS = 3
# As of `step/trial.py`.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}


class EncoderDecoderTrial:
    """The reference logits of two texts, computed before the model is changed."""

    def __init__(
        self, model: Any, folder: Path, vocabulary_size: int, prompts: list[SourcePrompt], max_text_tokens: int
    ) -> None:
        """`prompts`: two, without the tokens of a text. Raises InvalidModel if the model does not run, OutOfMemory."""
        self.folder = folder
        self._device, self._dtype = model.device, model.dtype
        random = np.random.default_rng(0)
        counts = [count for end, count in zip(np.cumsum(_PARTS), _PARTS, strict=True) if end <= max_text_tokens]
        self._counts = counts or [1]
        self._prompts = prompts
        padding = getattr(model.config, "pad_token_id", None)
        self._texts = [list(_random_ids(random, vocabulary_size, sum(self._counts), padding)) for _ in prompts]
        try:
            with torch.inference_mode():
                pairs = list(zip([each.media.inputs for each in prompts], self._texts, strict=True))
                self._expected = torch.cat([_logits(model, inputs, text) for inputs, text in pairs])
                self._original_s = _seconds(lambda: _logits(model, *pairs[-1]))
        except RUN_ERRORS as error:
            self._check_memory(error)
            raise InvalidModel(f"{folder}: the model does not run: {error}") from error

    def check(self, runner: EncoderDecoderRunner, packed_tolerance: float = 0.0) -> "np.ndarray[Any, Any]":
        """Return the cosines of the runner's logits and the model's, float [tokens]. The cache is free.

        Raises NotPaged where they differ, OutOfMemory.
        """
        try:
            with torch.inference_mode():
                own = self._run(runner).numpy()
        except RUN_ERRORS as error:
            self._check_memory(error)
            raise NotPaged(f"it does not run over blocks: {error}") from error
        expected = self._expected.numpy()
        off = float(np.sqrt(np.square(own - expected).mean())) / max(float(expected.std()), 1e-6)
        if not off <= max(_TOLERANCE[self._dtype], packed_tolerance):
            raise NotPaged(f"over blocks its logits are off by {off:.3g} times their spread")
        return row_cosines(expected, own)

    def report(
        self, runner: EncoderDecoderRunner, cosines: "np.ndarray[Any, Any]", scheme: str, before: int, after: int
    ) -> QuantizationReport:
        """Return the accuracy and the speed of quantized weights. `cosines`: as of `check`, float [tokens].

        `before`, `after`: bytes of the weights.
        """
        [*_, sequence] = self._sequences()
        part = StepPart(sequence, 0, len(sequence.token_ids), is_scored=True)
        with torch.inference_mode():
            own_s = _seconds(lambda: runner.compute([part]))
        return QuantizationReport(
            scheme,
            cosine_min=round(float(cosines.min()), 6),
            cosine_mean=round(float(cosines.mean()), 6),
            speedup=round(self._original_s / max(own_s, 1e-9), 3),
            bytes_before=before,
            bytes_after=after,
            original_ms=round(1e3 * self._original_s, 3),
            quantized_ms=round(1e3 * own_s, 3),
        )

    def _sequences(self) -> list[Sequence]:
        """Return the sequences of both texts, with blocks of their own."""
        sequences, first = [], 0
        for prompt, text in zip(self._prompts, self._texts, strict=True):
            token_ids = (*prompt.token_ids[: prompt.media.padded_source], *text)
            request = SequenceRequest(0, token_ids, 1, Sampling(), priority=DEFAULT_PRIORITY, media=prompt.media)
            sequence = Sequence(request, 0.0)
            count = -(-len(token_ids) // BLOCK_TOKENS)
            sequence.blocks = list(range(first, first + count))
            first += count
            sequences.append(sequence)
        return sequences

    def _run(self, runner: EncoderDecoderRunner) -> torch.Tensor:
        """Return the logits of all tokens; the single ones of both texts are computed together."""
        sequences = self._sequences()
        wholes = [list(sequence.token_ids) for sequence in sequences]
        found: list[list[torch.Tensor]] = [[], []]
        done = 0
        for count in self._counts:
            parts = []
            for sequence, whole in zip(sequences, wholes, strict=True):
                media = sequence.request.media
                assert media is not None
                # A part completes its sequence, as the next token of a text does.
                sequence.token_ids = whole[: media.padded_source + done + count]
                start = media.padded_source + done if done else 0
                parts.append(StepPart(sequence, start, media.padded_source + done + count - start, is_scored=True))
            if count > 1 or not done:
                rows = [runner.compute([part]) for part in parts]
            else:
                rows = list(torch.split(runner.compute(parts), 1))
            for own, logits in zip(found, rows, strict=True):
                own.append(logits[len(logits) - count :].float().cpu().clone())
            done += count
        return torch.cat([each for own in found for each in own])

    def _check_memory(self, error: Exception) -> None:
        ours = map_device_error(error, f"{self.folder}: a text of {sum(self._counts)} tokens", self._device)
        if isinstance(ours, OutOfMemory):
            raise ours from error


def source_prompts(source: SourceSpec, vocabulary_size: int, padding: int | None) -> list[SourcePrompt]:
    """Return the prompts of two random sources of texts. `padding`: the token that no source has."""
    random = np.random.default_rng(1)
    lengths = [min(each, source.max_tokens) for each in _SOURCES]
    return [source.prompt_of(_random_ids(random, vocabulary_size, each, padding)) for each in lengths]


def _random_ids(random: np.random.Generator, vocabulary_size: int, count: int, padding: int | None) -> tuple[int, ...]:
    """Return random tokens. Without padding: some models give it no position."""
    ids = random.integers(0, vocabulary_size, count)
    return tuple(((ids + (ids == padding)) % vocabulary_size).tolist())


def _logits(model: Any, inputs: Mapping[str, Any], text_ids: list[int]) -> torch.Tensor:
    """Return the model's own logits of a text, float32 [tokens, vocabulary]. `inputs`: of the encoder."""
    given = {name: encoder_input(each, model) for name, each in inputs.items()}
    text = torch.tensor([text_ids], device=model.device)
    logits: torch.Tensor = model(**given, decoder_input_ids=text, use_cache=False).logits[0]
    return logits.float().cpu()


def _seconds(run: Callable[[], torch.Tensor]) -> float:
    """Return the median of the seconds of a run."""
    times = []
    for _ in range(_ROUNDS):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return median(times)
