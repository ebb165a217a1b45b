"""Check a decoder against its model: one text by transformers' forward pass, and by the decoder in parts."""

import time
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.pytorch.device_errors import RUN_ERRORS, map_device_error
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.step.shape import NotPaged
from frameworks.quantization.comparison import row_cosines
from frameworks.scheduling.steps.sequence import Sequence as TextSequence
from frameworks.scheduling.steps.sequence import StepPart
from frameworks.types import DEFAULT_PRIORITY, QuantizationReport

# Tokens of a text whose perplexity is computed.
_MAX_TOKENS = 384
_MIN_TOKENS = 48
# Half a minute of two cores, at two operations for each weight and token.
_MAX_OPERATIONS = 2e12
_PART_TOKENS = 128
# Two parts of a prompt, the second across the border of two blocks, then single tokens.
_PARTS = (BLOCK_TOKENS - 8, 20, 1, 1, 1, 1)
# Root mean square of the logits' errors, relative to their spread. 16-bit dtypes are off by their own rounding, as
# transformers' attention functions are; another kind of attention is off by more than 1.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25, torch.float8_e4m3fn: 0.5}
# If a token attends to later ones, logits change by more than this part of the tolerance.
_CAUSAL_TOLERANCE = 0.1
_ROUNDS = 3
MASKED = 1e4
"""Logits from this size on are no result of the model's arithmetic."""

Compute = Callable[[list[StepPart]], torch.Tensor]
"""Parts of a step → their logits."""


class Trial:
    """The reference logits of one text, computed before the model is changed."""

    def __init__(
        self, model: Any, folder: Path, vocabulary_size: int, max_tokens: int, text_ids: tuple[int, ...] = ()
    ) -> None:
        """Compute the original's logits. `text_ids`: of a text whose perplexity is compared; empty for none.

        Raises InvalidModel if the model does not run, OutOfMemory.
        """
        self.folder = folder
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        counts = [count for end, count in zip(np.cumsum(_PARTS), _PARTS, strict=True) if end <= max_tokens]
        self.counts = counts or [1]
        length = sum(self.counts)
        # Any tokens suffice, if they differ.
        self.token_ids = tuple(int(token) for token in np.random.default_rng(0).integers(0, vocabulary_size, length))
        ids = torch.tensor([self.token_ids], device=model.device)
        # A check without a report needs no times.
        self._rounds = _ROUNDS if text_ids else 1
        self._text_ids = text_ids[: min(max_tokens, max_text_tokens(model))]

        def original() -> torch.Tensor:
            with torch.inference_mode():
                logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
                return logits.float().cpu()

        try:
            logits, self._original_s = _timed(original, self._rounds)
            self._perplexity = model_perplexity(model, self._text_ids)
        except RUN_ERRORS as error:
            self.check_memory(error)
            raise InvalidModel(f"{folder}: the model does not run: {error}") from error
        self._logits = logits[np.cumsum(self.counts) - 1].numpy()
        self._expected = self._logits

    def check_causal(self, logits_of: Callable[[list[int]], torch.Tensor]) -> None:
        """Raise InvalidModel if logits depend on later tokens, as in an encoder.

        `logits_of`: the model, from token ids to logits [tokens, vocabulary].
        """
        kept = len(self.token_ids) // 2
        others = [*self.token_ids[:kept], *reversed(self.token_ids[kept:])]
        if not kept:
            return
        with torch.inference_mode():
            first, second = (logits_of(ids)[:kept].float() for ids in (list(self.token_ids), others))
        changed = float((first - second).square().mean().sqrt()) / max(float(first.std()), 1e-6)
        if not changed <= _CAUSAL_TOLERANCE * self.tolerance:
            raise InvalidModel(
                f"{self.folder}: expected tokens that see only earlier ones, got logits that depend on later ones; "
                "check is_decoder in config.json"
            )

    def check(self, runner: PagedRunner, kv_dtype: torch.dtype, packed_tolerance: float = 0.0) -> None:
        """Raise NotPaged if the logits of the runner differ from the model's, OutOfMemory.

        `kv_dtype`: of its keys and values. `packed_tolerance`: for layers that round more than the dtype does.
        """
        for compute in (runner.compute_by_layers, *([] if runner.step is None else [runner.compute])):
            own, _ = self._run(compute)
            off = self.off(own)
            if not off <= max(self.tolerance, _TOLERANCE[kv_dtype], packed_tolerance):
                raise NotPaged(f"by paged attention its logits are off by {off:.3g} times their spread")

    def check_step(
        self,
        compute: Compute,
        kv_dtype: torch.dtype,
        packed_tolerance: float = 0.0,
    ) -> None:
        """As `check`, for a compiled step. With quantized weights it is compared with the logits of the last report."""
        own, _ = self._run(compute)
        off = _off(own, self._expected)
        if not off <= max(self.tolerance, _TOLERANCE[kv_dtype], packed_tolerance):
            raise NotPaged(f"by its compiled step its logits are off by {off:.3g} times their spread")

    def off(self, logits: Any, first: int = 0) -> float:
        """Return the error of logits after the parts from `first` on, relative to their spread."""
        return _off(logits, self._logits[first:])

    @property
    def num_blocks(self) -> int:
        """Blocks of keys and values that the text takes, numbered from 0."""
        return -(-sum(self.counts) // BLOCK_TOKENS)

    @property
    def num_report_blocks(self) -> int:
        """Blocks of keys and values that `report` takes, numbered from 0."""
        return max(self.num_blocks, -(-len(self._text_ids) // BLOCK_TOKENS))

    @property
    def tolerance(self) -> float:
        """Largest error of a correct model."""
        return _TOLERANCE[self._dtype]

    def report(self, compute: Compute, scheme: str, bytes_before: int, bytes_after: int) -> QuantizationReport:
        """Measure the error of a decoder with quantized weights against the model.

        `compute`: as PagedRunner.compute, with a cache that is free.
        """
        own, own_s = self._run(compute)
        self._expected = own
        cosines = row_cosines(self._logits, own)
        return QuantizationReport(
            scheme,
            cosine_min=round(float(cosines.min()), 6),
            cosine_mean=round(float(cosines.mean()), 6),
            speedup=round(self._original_s / max(own_s, 1e-9), 3),
            bytes_before=bytes_before,
            bytes_after=bytes_after,
            original_ms=round(1e3 * self._original_s, 3),
            quantized_ms=round(1e3 * own_s, 3),
            perplexity=decoder_perplexity(compute, self._text_ids),
            perplexity_original=self._perplexity,
        )

    def _run(self, compute: Compute) -> tuple[Any, float]:
        """Return the logits after each part, and the seconds of the whole text at once."""
        blocks = list(range(self.num_blocks))

        def computed(start: int, count: int) -> torch.Tensor:
            token_ids = self.token_ids[: start + count]
            sequence = TextSequence(SequenceRequest(0, token_ids, 1, Sampling(), priority=DEFAULT_PRIORITY), 0.0)
            sequence.blocks = blocks
            with torch.inference_mode():
                return compute([StepPart(sequence, start, count)]).float().cpu().clone()

        try:
            ends = np.cumsum(self.counts)
            rows = [computed(int(end) - count, count) for end, count in zip(ends, self.counts, strict=True)]
            _, seconds = _timed(lambda: computed(0, int(ends[-1])), self._rounds)
        except RUN_ERRORS as error:
            self.check_memory(error)
            raise NotPaged(f"it does not run by paged attention: {error}") from error
        return torch.cat(rows).numpy(), seconds

    def check_memory(self, error: Exception) -> None:
        """Raise OutOfMemory if memory is the cause: the model may still be served where there is more."""
        ours = map_device_error(error, f"{self.folder}: a text of {len(self.token_ids)} tokens", self._device)
        if isinstance(ours, OutOfMemory):
            raise ours from error


def _off(logits: Any, expected: Any) -> float:
    """Return the error of logits, relative to the spread of the expected ones. Tokens that the model masks are left
    out: their logits are the lowest number of the dtype.
    """
    is_free = np.abs(expected) < MASKED
    own, wanted = logits[is_free], expected[is_free]
    return float(np.sqrt(np.square(own - wanted).mean())) / max(float(wanted.std()), 1e-6)


def _timed(run: Callable[[], torch.Tensor], rounds: int) -> tuple[torch.Tensor, float]:
    """Return the result, and the median of the seconds."""
    times: list[float] = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - started_s)
    return result, median(times)


def max_text_tokens(model: Any) -> int:
    """Return how many tokens of a text are computed: fewer of a large model, whose load would take minutes."""
    weights = sum(each.numel() for each in model.parameters())
    return max(_MIN_TOKENS, min(_MAX_TOKENS, int(_MAX_OPERATIONS / (2 * max(1, weights)))))


def model_perplexity(model: Any, token_ids: Sequence[int]) -> float | None:
    """Return the perplexity by a model of transformers; None for fewer than two tokens."""
    if len(token_ids) < 2:
        return None
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits[0]
    return _perplexity(-_log_probabilities(logits[:-1], token_ids[1:]), len(token_ids) - 1)


def decoder_perplexity(compute: Callable[[list[StepPart]], torch.Tensor], token_ids: Sequence[int]) -> float | None:
    """Return the perplexity by a decoder whose cache is free and holds the text; None for fewer than two tokens.

    `compute`: as PagedRunner.compute, from parts to logits [tokens, vocabulary].
    """
    if len(token_ids) < 2:
        return None
    request = SequenceRequest(0, tuple(token_ids), 1, Sampling(), priority=DEFAULT_PRIORITY)
    sequence = TextSequence(request, 0.0)
    sequence.blocks = list(range(-(-len(token_ids) // BLOCK_TOKENS)))
    loss = 0.0
    for start in range(0, len(token_ids), _PART_TOKENS):
        count = min(_PART_TOKENS, len(token_ids) - start)
        with torch.inference_mode():
            logits = compute([StepPart(sequence, start, count, is_scored=True)])
        following = token_ids[start + 1 : start + 1 + count]
        loss -= _log_probabilities(logits[: len(following)], following)
    return _perplexity(loss, len(token_ids) - 1)


def _log_probabilities(logits: torch.Tensor, token_ids: Sequence[int]) -> float:
    """Return the sum of the log probabilities of the tokens. `logits`: [tokens, vocabulary]."""
    wide = logits.float()
    own = wide.gather(1, torch.tensor(token_ids, device=wide.device)[:, None])[:, 0]
    return float((own - wide.logsumexp(-1)).sum())


def _perplexity(loss: float, count: int) -> float:
    return round(exp(min(loss / count, 700.0)), 4)
