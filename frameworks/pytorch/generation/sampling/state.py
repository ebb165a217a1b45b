"""State of one sequence's sampling: random numbers, constraint, penalties, bias, bad words and suppressed tokens."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.text.bad_words import BadWords, RepeatedNgrams, TokenIds
from frameworks.generation.types import NOT_FORCED, Sampling
from frameworks.pytorch.generation.sampling.allowed_tokens import AllowedTokens
from frameworks.pytorch.generation.sampling.rejection import DraftDraw

_SEED_BITS = 64
_KEPT_UNIFORMS = 256  # more than the tokens that are ever proposed
_COLDEST = 1e-5  # a lower temperature is greedy: float32 logits divided by it keep no significant digits


class SamplingState:
    """Made with its sequence, and kept while the sequence is preempted. Used by one thread.

    It has its own random numbers, one for each token: whichever sequences share its steps, and however often it is
    preempted, the same seed draws the same tokens. Sampling changes nothing here; `accept` does.
    """

    def __init__(self, request: SequenceRequest, vocabulary_size: int) -> None:
        """`vocabulary_size`: number of logits of a row. Raises InvalidInput for a logit_bias beyond them."""
        sampling = request.sampling
        for token_id in sampling.logit_bias:
            if not 0 <= token_id < vocabulary_size:
                raise InvalidInput("logit_bias", f"expected tokens from 0 to {vocabulary_size - 1}, got {token_id}")
        self.num_generated = 0
        """Number of accepted tokens."""
        self.matcher = request.matcher
        self.top_logprobs = sampling.top_logprobs
        self.temperature = sampling.temperature
        all_tokens = sampling.top_k is None or not 0 < sampling.top_k < vocabulary_size
        self.top_k = vocabulary_size if all_tokens or sampling.top_k is None else sampling.top_k
        self.top_p = sampling.top_p
        self.min_p = sampling.min_p
        self.is_greedy = sampling.temperature < _COLDEST or self.top_k == 1
        self.is_truncated = self.top_k < vocabulary_size or self.top_p < 1 or self.min_p > 0
        """Whether top_k, top_p or min_p remove candidates."""
        self._min_tokens = request.min_tokens
        self._stop_token_ids = request.stop_token_ids
        self._forced_tokens = request.forced_tokens
        self.forces_tokens = request.forced_tokens is not NOT_FORCED and bool(request.forced_tokens)
        """Whether `forced_ids` are ever not empty."""
        self._num_prompt_tokens, self._max_tokens = len(request.text_prompt_ids), request.max_tokens
        # With a constraint, its grammar decides whether tokens other than end tokens are allowed.
        suppressed = self._stop_token_ids if self._min_tokens > 0 and self.matcher is None else ()
        self.logit_processor: LogitProcessor | None = None
        """None if no logit is changed."""
        bad = (*request.bad_sequences, *sampling.bad_sequences)
        if suppressed or bad or sampling.changes_logits:
            changes = LogitProcessor(sampling, request.text_prompt_ids, suppressed, vocabulary_size, bad)
            self.logit_processor = changes if changes.has_effect else None
        self.allowed = AllowedTokens.of(sampling)
        """None where the text may have each token next."""
        self.scores_allowed = sampling.timestamps is not None
        """Whether log probabilities are those of the tokens that are allowed."""
        self.draft: DraftDraw | None = None
        """The token that a draft model drew as the next one; None: none was drawn."""
        self._uniforms = None if self.is_greedy else _Uniforms(sampling.seed)
        self.uniform = 0.0 if self._uniforms is None else self._uniforms.of_token(0)
        """The next token's random number, from 0 up to but excluding 1."""

    @property
    def is_plain(self) -> bool:
        """Whether the next token depends on unchanged logits and a random number alone, without log probabilities."""
        return self.logit_processor is None and self.top_logprobs is None and self.continues_unread

    @property
    def is_plain_greedy(self) -> bool:
        """Whether each token is that of the highest unchanged logit, without log probabilities."""
        return self.is_greedy and self.is_plain

    @property
    def forced_ids(self) -> tuple[int, ...]:
        """The tokens of which the next one has to be one; empty: it is sampled."""
        return self._forced_tokens.of_token(self.num_generated, self._num_prompt_tokens, self._max_tokens)

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """The tokens that end the text, while it has fewer than `min_tokens`; empty afterwards."""
        return self._stop_token_ids if self.num_generated < self._min_tokens else frozenset()

    @property
    def continues_unread(self) -> bool:
        """Whether the next token depends on the last one by logits and penalties alone: a device can sample it before
        the host has read the last one.
        """
        has_words = self.logit_processor is not None and self.logit_processor.has_bad_words
        needs_last = self.matcher is not None or self.forces_tokens or has_words or self.allowed is not None
        return not needs_last and self.draft is None

    def accept(self, token_id: int) -> None:
        """Record that the sequence continues with this token."""
        self.expect()
        self.receive(token_id)

    def expect(self) -> None:
        """Record that the sequence continues with a token; `receive` is called when it is known."""
        self.num_generated += 1
        if self._uniforms is not None:
            self.uniform = self._uniforms.of_token(self.num_generated)
        if self.logit_processor is not None and self.num_generated == self._min_tokens:
            self.logit_processor.allow_suppressed()
            self.logit_processor = self.logit_processor if self.logit_processor.has_effect else None

    def receive(self, token_id: int) -> None:
        """Record the token that was expected."""
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self.logit_processor is not None:
            self.logit_processor.accept(token_id)
        if self.allowed is not None:
            self.allowed.accept(token_id)

    def copied(self) -> Self:
        """Return an independent one in the same state."""
        state = copy.copy(self)
        if state.matcher is not None:
            state.matcher = state.matcher.copy()
        if state.logit_processor is not None:
            state.logit_processor = state.logit_processor.copy()
        if state.allowed is not None:
            state.allowed = state.allowed.copied()
        return state

    def ahead(self, token_ids: Sequence[int]) -> list[Self]:
        """Return the states after none, one and so on of these tokens: this one first, then independent ones."""
        if self.is_plain_greedy:
            # Every state of such a sequence chooses in the same way.
            return [self] * (1 + len(token_ids))
        states = [self]
        for token_id in token_ids:
            state = states[-1].copied()
            state.accept(token_id)
            states.append(state)
        return states


class _Uniforms:
    """The random numbers of one sequence by token index. States ahead of the sequence read them first."""

    def __init__(self, seed: int | None) -> None:
        self._random = np.random.Generator(np.random.PCG64(_bits(seed)))
        self._drawn: list[float] = []
        self._num_dropped = 0

    def of_token(self, index: int) -> float:
        """Return the random number of a token, at most _KEPT_UNIFORMS before the highest index so far."""
        while index >= self._num_dropped + len(self._drawn):
            self._drawn.append(self._random.random())
        uniform = self._drawn[index - self._num_dropped]
        if len(self._drawn) > 2 * _KEPT_UNIFORMS:
            self._num_dropped += len(self._drawn) - _KEPT_UNIFORMS
            del self._drawn[:-_KEPT_UNIFORMS]
        return uniform


class LogitEdits(NamedTuple):
    """The logit of token `ids[i]` is divided by `divisors[i]` (multiplied if negative), then `shifts[i]` is added.
    `are_counted`: whether the text has the token.

    int64, twice float32 and bool; views, to be read before the next change.
    """

    ids: "np.ndarray[Any, np.dtype[np.int64]]"
    divisors: "np.ndarray[Any, np.dtype[np.float32]]"
    shifts: "np.ndarray[Any, np.dtype[np.float32]]"
    are_counted: "np.ndarray[Any, np.dtype[np.bool_]]"


class LogitProcessor:
    """Penalties, bias, bad words and suppressed tokens of one sequence, updated token by token.

    They change few logits, so they are lists of token ids, never whole rows. The repetition penalty is
    that of CTRL (https://arxiv.org/abs/1909.05858), over prompt and text, as in transformers; frequency and presence
    penalty count the text alone, as OpenAI's API defines them.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt_ids: Iterable[int],
        suppressed_ids: Iterable[int],
        vocabulary_size: int,
        bad_sequences: Iterable[TokenIds] = (),
    ) -> None:
        """`suppressed_ids`: never sampled until `allow_suppressed`. `bad_sequences`: their last token is never sampled
        after the others. Ids beyond the vocabulary are ignored.
        """
        self._vocabulary_size = vocabulary_size
        self._divisor = sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._bias = sampling.logit_bias
        self._counts_text = self._divisor != 1 or self._frequency != 0 or self._presence != 0
        self._counts: dict[int, int] = {}
        self._suppressed = frozenset(suppressed_ids)
        self._begin_suppressed = frozenset(sampling.begin_suppressed_ids)
        self._bad = BadWords(bad_sequences)
        prompt_ids = tuple(prompt_ids)
        self._repeated = RepeatedNgrams(sampling.no_repeat_ngram_size, prompt_ids)
        changed = set(self._bias) | self._suppressed | self._begin_suppressed | self._bad.last_ids
        changed |= self._repeated.banned
        repeated = set(prompt_ids) if self._divisor != 1 else set()
        token_ids = sorted(token_id for token_id in changed | repeated if 0 <= token_id < vocabulary_size)
        self._slots = {token_id: slot for slot, token_id in enumerate(token_ids)}
        self._ids = np.array(token_ids, np.int64)
        self._divisors = np.array([self._divisor if i in repeated else 1.0 for i in token_ids], np.float32)
        self._shifts = np.array([self._shift_of(i) for i in token_ids], np.float32)
        self._are_counted = np.zeros(len(token_ids), np.bool_)

    @property
    def has_effect(self) -> bool:
        """False if no logit is changed, now or later."""
        return bool(self._slots) or self._counts_text or self._repeated.has_effect

    def copy(self) -> "LogitProcessor":
        """Return an independent one in the same state."""
        other = copy.copy(self)
        if self.has_bad_words:
            other._bad, other._repeated = self._bad.copy(), self._repeated.copy()
        if self._counts_text or self._suppressed or self._begin_suppressed or self.has_bad_words:
            other._counts, other._slots = dict(self._counts), dict(self._slots)
            other._ids, other._divisors, other._shifts = self._ids.copy(), self._divisors.copy(), self._shifts.copy()
            other._are_counted = self._are_counted.copy()
        return other

    @property
    def has_bad_words(self) -> bool:
        """Whether the text must not have certain tokens, by those before them."""
        return bool(self._bad.last_ids) or self._repeated.has_effect or bool(self._begin_suppressed)

    def accept(self, token_id: int) -> None:
        """Record that the text continues with this token."""
        if self.has_bad_words:
            begun, self._begin_suppressed = self._begin_suppressed, frozenset()
            repeated = self._repeated.accept(token_id)
            for each in repeated - self._slots.keys():
                if 0 <= each < self._vocabulary_size:
                    added = self._add(each)
                    self._divisors[added], self._are_counted[added] = 1.0, False
            for each in (self._bad.accept(token_id) | repeated | begun) & self._slots.keys():
                self._shifts[self._slots[each]] = self._shift_of(each)
        if not self._counts_text:
            return
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._add(token_id)
        self._divisors[slot] = self._divisor
        self._shifts[slot] = self._shift_of(token_id)
        self._are_counted[slot] = True

    def allow_suppressed(self) -> None:
        """Allow the suppressed tokens from now on."""
        lifted, self._suppressed = self._suppressed, frozenset()
        for token_id in lifted:
            slot = self._slots.get(token_id)
            if slot is not None:
                self._shifts[slot] = self._shift_of(token_id)
        if not (self._counts_text or self._bias or self.has_bad_words):
            self._slots.clear()

    def current(self) -> LogitEdits:
        """Return the edits for the next token."""
        count = len(self._slots)
        return LogitEdits(self._ids[:count], self._divisors[:count], self._shifts[:count], self._are_counted[:count])

    @property
    def penalties(self) -> tuple[float, float, float]:
        """Return the divisor of a token that the text has, and what is subtracted each time and once."""
        return self._divisor, self._frequency, self._presence

    def _shift_of(self, token_id: int) -> float:
        if token_id in self._suppressed or token_id in self._bad.banned or token_id in self._repeated.banned:
            return -np.inf
        if token_id in self._begin_suppressed:
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
            self._are_counted = np.resize(self._are_counted, capacity)
        self._slots[token_id] = slot
        self._ids[slot] = token_id
        return slot


def _bits(seed: int | None) -> int | None:
    """Convert any integer, also a negative one, to the unsigned seed that NumPy accepts."""
    return None if seed is None else seed & ((1 << _SEED_BITS) - 1)
