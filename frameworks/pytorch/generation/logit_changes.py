"""Which logits of one sequence are changed before a token is chosen, and how: penalties, bias, tokens that are barred.

They are few beside a vocabulary, so they are kept as lists of token ids that grow with the text, and never as rows.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from frameworks.generation.types import Sampling


class Changes(NamedTuple):
    """A logit of the token `ids[i]` is divided by `divisors[i]` (multiplied, where it is below 0), then `shifts[i]` is
    added. int64 and twice float32; views, to be read before the next change.
    """

    ids: "np.ndarray[Any, np.dtype[np.int64]]"
    divisors: "np.ndarray[Any, np.dtype[np.float32]]"
    shifts: "np.ndarray[Any, np.dtype[np.float32]]"


class LogitChanges:
    """Kept up to date token by token.

    The repetition penalty is that of CTRL (https://arxiv.org/abs/1909.05858), over prompt and text, as transformers
    has it; frequency and presence penalty count the text alone, as OpenAI's API defines them.
    """

    def __init__(
        self, sampling: Sampling, prompt_ids: Iterable[int], barred_ids: Iterable[int], vocabulary_size: int
    ) -> None:
        """`barred_ids`: not to be chosen until `lift_bar`. Ids beyond the vocabulary are left out."""
        self._divisor = sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._bias = sampling.logit_bias
        self._counts_text = self._divisor != 1 or self._frequency != 0 or self._presence != 0
        self._counts: dict[int, int] = {}
        self._barred = frozenset(barred_ids)
        changed = set(self._bias) | self._barred
        repeated = set(prompt_ids) if self._divisor != 1 else set()
        token_ids = sorted(token_id for token_id in changed | repeated if 0 <= token_id < vocabulary_size)
        self._slots = {token_id: slot for slot, token_id in enumerate(token_ids)}
        self._ids = np.array(token_ids, np.int64)
        self._divisors = np.array([self._divisor if i in repeated else 1.0 for i in token_ids], np.float32)
        self._shifts = np.array([self._shift_of(i) for i in token_ids], np.float32)

    @property
    def can_come(self) -> bool:
        """False where there is nothing to change, and never will be."""
        return bool(self._slots) or self._counts_text

    def accept(self, token_id: int) -> None:
        """The text goes on with this token."""
        if not self._counts_text:
            return
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._add(token_id)
        self._divisors[slot] = self._divisor
        self._shifts[slot] = self._shift_of(token_id)

    def lift_bar(self) -> None:
        """From now on the barred tokens may be chosen."""
        lifted, self._barred = self._barred, frozenset()
        for token_id in lifted:
            slot = self._slots.get(token_id)
            if slot is not None:
                self._shifts[slot] = self._shift_of(token_id)
        if not (self._counts_text or self._bias):
            self._slots.clear()

    def now(self) -> Changes:
        """What there is to change."""
        count = len(self._slots)
        return Changes(self._ids[:count], self._divisors[:count], self._shifts[:count])

    def _shift_of(self, token_id: int) -> float:
        if token_id in self._barred:
            return -np.inf
        shift = self._bias.get(token_id, 0.0)
        count = self._counts.get(token_id, 0)
        return shift - count * self._frequency - self._presence if count else shift

    def _add(self, token_id: int) -> int:
        slot = len(self._slots)
        if slot == len(self._ids):
            capacity = max(64, 2 * slot)
            self._ids = np.resize(self._ids, capacity)
            self._divisors = np.resize(self._divisors, capacity)
            self._shifts = np.resize(self._shifts, capacity)
        self._slots[token_id] = slot
        self._ids[slot] = token_id
        return slot
