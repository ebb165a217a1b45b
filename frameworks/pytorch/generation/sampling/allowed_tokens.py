"""Mask the logits of the tokens that a text may not continue with: all but a few, or those of wrong timestamps."""

import copy
import math
from typing import Self

import torch

from frameworks.generation.types import Sampling, TimestampRules


class AllowedTokens:
    """The tokens that one text may have next. Used by one thread."""

    def __init__(self, ids: tuple[int, ...], rules: TimestampRules | None) -> None:
        """`ids`: empty: any. `rules`: None: the text has no timestamps."""
        self._ids = ids
        self._rules = rules
        self._num_tokens = 0
        # Whether the last two tokens are timestamps. A text begins as after one.
        self._is_before, self._is_last = True, True
        self._last_id: int | None = None

    @staticmethod
    def of(sampling: Sampling) -> "AllowedTokens | None":
        """Return those of a sequence; None where it may have each token."""
        rules = sampling.timestamps
        rules = rules if rules is not None and rules.are_written else None
        return AllowedTokens(sampling.allowed_ids, rules) if rules is not None or sampling.allowed_ids else None

    def copied(self) -> Self:
        """Return an independent one in the same state."""
        return copy.copy(self)

    def accept(self, token_id: int) -> None:
        """Record that the text continues with this token."""
        self._num_tokens += 1
        if self._rules is not None:
            is_timestamp = token_id >= self._rules.first_id
            self._is_before, self._is_last = self._is_last, is_timestamp
            self._last_id = token_id if is_timestamp else self._last_id

    def mask(self, logits: torch.Tensor) -> None:
        """Write -inf for each token that may not be next. `logits`: float32 [vocabulary], or log probabilities."""
        if self._ids:
            ids = torch.tensor(self._ids, device=logits.device)
            kept = logits.index_select(0, ids)
            logits.fill_(-math.inf).index_copy_(0, ids, kept)
        if self._rules is not None:
            self._mask_timestamps(logits, self._rules)

    def _mask_timestamps(self, logits: torch.Tensor, rules: TimestampRules) -> None:
        """Apply the rules in the order of transformers' WhisperTimeStampLogitsProcessor."""
        first = rules.first_id
        logits[first - 1] = -math.inf
        if not self._num_tokens:
            logits[:first] = -math.inf
            if rules.max_initial is not None:
                logits[first + rules.max_initial + 1 :] = -math.inf
        elif self._is_last and self._is_before:
            logits[first:] = -math.inf
        elif self._is_last:
            logits[: rules.end_id] = -math.inf
        if self._last_id is not None:
            # Times do not decrease, and two of them are equal only at the border of two parts.
            is_end_of_part = self._is_last and not self._is_before
            logits[first : self._last_id + (0 if is_end_of_part else 1)] = -math.inf
        texts, timestamps = logits[:first], logits[first:]
        texts.masked_fill_(timestamps.logsumexp(0) > texts.max(), -math.inf)
