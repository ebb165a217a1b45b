"""Compute the log probabilities of the tokens of prompts, from the logits of each part of a prefill."""

from collections.abc import Sequence

import numpy as np
import torch

from frameworks.generation.prompt_scores import PromptScores
from frameworks.generation.sequences import SequenceRequest
from frameworks.pytorch.generation.sampling.top_k import argmax_rows, top_positions
from frameworks.scheduling.steps.sequence import StepPart
from frameworks.scheduling.steps.step_cost import MIN_PROMPT_TOKENS

# Logits of one step, over all prompts: 64 MiB of float32.
_MAX_STEP_LOGITS = 1 << 24
# Logits that are reduced at once, so that they and their exponentials stay in the CPU's cache.
_LOGITS_AT_ONCE = 1 << 20


def max_scored_tokens(vocabulary_size: int) -> int:
    """Return the number of tokens whose logits a step may hold."""
    return max(MIN_PROMPT_TOKENS, _MAX_STEP_LOGITS // vocabulary_size)


class PromptScorer:
    """The prompts of one model that are being scored. Used by one thread."""

    def __init__(self, device: torch.device, vocabulary_size: int) -> None:
        """`device`: of the logits. The search for the most likely tokens needs 64 bits, which MPS does not have."""
        self._device = torch.device("cpu") if device.type == "mps" else device
        self._vocabulary_size = vocabulary_size
        self._by_sequence: dict[int, _Prompt] = {}

    def add(self, request: SequenceRequest) -> None:
        """Add a sequence if the log probabilities of its prompt are requested."""
        if request.prompt_logprobs is not None and len(request.prompt_ids) > 1:
            num_top = min(request.prompt_logprobs, self._vocabulary_size)
            scores = PromptScores(request.sequence_id, len(request.prompt_ids), num_top)
            self._by_sequence[request.sequence_id] = _Prompt(request, scores, self._device)

    def forget(self, sequence_id: int) -> None:
        """Drop the prompt of a sequence that has ended. Does nothing for an unknown one."""
        self._by_sequence.pop(sequence_id, None)

    def score(self, parts: Sequence[StepPart], logits: torch.Tensor) -> torch.Tensor:
        """Score the parts of prompts; return the logits to sample from, [sum of num_sampled, vocabulary].

        `logits`: of all parts in order, [sum of num_logits, vocabulary].
        """
        sampled: list[int] = []
        first = 0
        for part in parts:
            end = first + part.num_logits
            if part.is_scored:
                self._by_sequence[part.sequence.sequence_id].fill(part.start, logits[first:end])
            sampled += range(end - part.num_sampled, end)
            first = end
        return logits.index_select(0, torch.tensor(sampled, dtype=torch.int64, device=logits.device))

    def take_scored(self, parts: Sequence[StepPart]) -> list[PromptScores]:
        """Return the log probabilities of the prompts that these parts, which were computed, have completed.

        Each prompt is returned once. Logits that are NaN make the logits after the prompt NaN too, so they fail there.
        """
        complete = (
            part.sequence for part in parts if part.is_scored and part.sequence.num_scored == part.sequence.num_to_score
        )
        return [self._by_sequence.pop(sequence.sequence_id).scores for sequence in complete]


class _Prompt:
    """A prompt and its scores so far."""

    def __init__(self, request: SequenceRequest, scores: PromptScores, device: torch.device) -> None:
        self.scores = scores
        self._device = device
        self._next_ids = np.asarray(request.prompt_ids[1:], dtype=np.int64)

    def fill(self, start: int, logits: torch.Tensor) -> None:
        """Fill in the rows from `start` on. `logits` after these tokens: [tokens, vocabulary], any floating dtype."""
        stop = min(start + len(logits), len(self._next_ids))
        at_once = max(1, _LOGITS_AT_ONCE // logits.shape[-1])
        for first in range(start, stop, at_once):
            end = min(first + at_once, stop)
            self._fill(first, end, logits[first - start : end - start].to(self._device, torch.float32))

    def _fill(self, first: int, end: int, logits: torch.Tensor) -> None:
        """`logits`: float32 [end - first, vocabulary]."""
        scores = self.scores
        next_ids = torch.from_numpy(self._next_ids[first:end]).to(self._device)[:, None]
        totals = logits.logsumexp(dim=-1, keepdim=True)
        own = logits.gather(1, next_ids)
        scores.logprobs[first:end] = (own - totals)[:, 0].cpu().numpy()
        scores.ranks[first:end] = (logits > own).sum(dim=-1).add_(1).cpu().numpy()
        num_top = scores.top_ids.shape[1]
        if num_top:
            ids = argmax_rows(logits)[0][:, None] if num_top == 1 else top_positions(logits, num_top)
            scores.top_ids[first:end] = ids.cpu().numpy()
            scores.top_logprobs[first:end] = (logits.gather(1, ids) - totals).cpu().numpy()
