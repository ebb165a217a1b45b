"""What the choice of one sequence's next token depends on, besides the logits."""

import numpy as np

from frameworks.errors import InvalidInput
from frameworks.generation.types import SequenceRequest
from frameworks.pytorch.generation.logit_changes import LogitChanges

_SEED_BITS = 64
_COLDEST = 1e-5  # colder is greedy: quotients of float32 logits have no digits left


class SamplingState:
    """One sequence's: made with it, and kept while it waits to go on. Used by one thread.

    It has its own random numbers, one for each token of the text: whatever runs beside the sequence, and however often
    it is put back and resumed, the same seed draws the same. Choosing a token changes nothing here; `accept` does.
    """

    def __init__(self, request: SequenceRequest, vocabulary_size: int) -> None:
        """`vocabulary_size`: how many logits a row has. Raises InvalidInput for a logit_bias beyond them."""
        sampling = request.sampling
        for token_id in sampling.logit_bias:
            if not 0 <= token_id < vocabulary_size:
                raise InvalidInput("logit_bias", f"no token {token_id}; the model's go from 0 to {vocabulary_size - 1}")
        self.num_generated = 0
        """Tokens that were accepted."""
        self.matcher = request.matcher
        self.top_logprobs = sampling.top_logprobs
        self.temperature = sampling.temperature
        all_tokens = sampling.top_k is None or not 0 < sampling.top_k < vocabulary_size
        self.top_k = vocabulary_size if all_tokens or sampling.top_k is None else sampling.top_k
        self.top_p = sampling.top_p
        self.min_p = sampling.min_p
        self.is_greedy = sampling.temperature < _COLDEST or self.top_k == 1
        self.is_cut = self.top_k < vocabulary_size or self.top_p < 1 or self.min_p > 0
        """Some candidates are cut off."""
        self._min_tokens = request.min_tokens
        self._stop_token_ids = request.stop_token_ids
        # Where a constraint decides what may come, it decides too whether anything else than an end may.
        barred = self._stop_token_ids if self._min_tokens > 0 and self.matcher is None else ()
        changes = LogitChanges(sampling, request.prompt_ids, barred, vocabulary_size)
        self.changes: LogitChanges | None = changes if changes.can_come else None
        """None where no logit is changed."""
        self._random = None if self.is_greedy else np.random.Generator(np.random.PCG64(_bits(sampling.seed)))
        self.uniform = self._draw()
        """The next token's random number, from 0 up to but without 1."""

    @property
    def is_plain_greedy(self) -> bool:
        """The next token is that of the highest logit as it is, and nothing else is asked for."""
        return self.is_greedy and self.matcher is None and self.changes is None and self.top_logprobs is None

    @property
    def barred_ids(self) -> frozenset[int]:
        """The tokens that end the text, while it is too short for that; none from `min_tokens` on."""
        return self._stop_token_ids if self.num_generated < self._min_tokens else frozenset()

    def accept(self, token_id: int) -> None:
        """The sequence goes on with this token."""
        self.num_generated += 1
        self.uniform = self._draw()
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self.changes is not None:
            self.changes.accept(token_id)
            if self.num_generated == self._min_tokens:
                self.changes.lift_bar()
                self.changes = self.changes if self.changes.can_come else None

    def _draw(self) -> float:
        return 0.0 if self._random is None else self._random.random()


def _bits(seed: int | None) -> int | None:
    """What NumPy takes for a seed: any whole number, also one below 0, as unsigned bits."""
    return None if seed is None else seed & ((1 << _SEED_BITS) - 1)
