"""Penalties, bias and suppressed end tokens."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.sampling.sampler import Sampler
from frameworks.pytorch.generation.sampling.state import LogitProcessor
from tests.frameworks.pytorch.generation.sampling_cases import CPU, AllowedIds, ids, random_logits, shares, state_of

SIZE = 40
TOKENS = st.integers(0, SIZE - 1)


def changed(logits: torch.Tensor, changes: LogitProcessor) -> torch.Tensor:
    """Return the changed row."""
    row = logits.clone()
    token_ids, divisors, shifts, _ = (torch.from_numpy(array.copy()) for array in changes.current())
    assert len(set(token_ids.tolist())) == len(token_ids)
    row[token_ids] = torch.where(row[token_ids] < 0, row[token_ids] * divisors, row[token_ids] / divisors) + shifts
    return row


class TestLogitChanges:
    @given(
        prompt=st.lists(TOKENS, max_size=12),
        text=st.lists(TOKENS, max_size=90),
        repetition=st.sampled_from([1.0, 1.2, 0.5]),
        frequency=st.sampled_from([0.0, 0.5, -1.25]),
        presence=st.sampled_from([0.0, 0.25, -2.0]),
        bias=st.dictionaries(TOKENS, st.floats(-100, 100, width=32), max_size=4),
        seed=st.integers(0, 9),
    )
    def test_changes_match_definitions_after_every_token(
        self,
        prompt: list[int],
        text: list[int],
        repetition: float,
        frequency: float,
        presence: float,
        bias: dict[int, float],
        seed: int,
    ) -> None:
        """The repetition penalty is that of transformers; frequency and presence are those of OpenAI's documentation:
        mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence.
        """
        sampling = Sampling(
            repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence, logit_bias=bias
        )
        logits = random_logits(1, SIZE, seed)
        changes = LogitProcessor(sampling, prompt, (), SIZE)
        for count in range(len(text) + 1):
            if count:
                changes.accept(text[count - 1])
            if count % 30 and count != len(text):
                continue
            seen = torch.tensor([prompt + text[:count]], dtype=torch.long)
            expected = RepetitionPenaltyLogitsProcessor(repetition)(seen, logits.clone())[0].double()
            for token_id, times in Counter(text[:count]).items():
                expected[token_id] -= times * frequency + presence
            for token_id, each in bias.items():
                expected[token_id] += each
            np.testing.assert_allclose(changed(logits[0], changes).double(), expected, rtol=0, atol=1e-4)

    @given(prompt=st.lists(TOKENS, max_size=12), text=st.lists(TOKENS, max_size=12))
    def test_suppressed_tokens_stay_suppressed(self, prompt: list[int], text: list[int]) -> None:
        sampling = Sampling(repetition_penalty=1.5, frequency_penalty=0.5, logit_bias={3: 100.0, 4: 1.0})
        barred, free = (LogitProcessor(sampling, prompt, bar, SIZE) for bar in ({3, 7, 99}, ()))
        logits = random_logits(1, SIZE)[0]
        for token_id in text:
            barred.accept(token_id)
            free.accept(token_id)
        expected = changed(logits, free)
        expected[[3, 7]] = -math.inf
        assert torch.equal(changed(logits, barred), expected)
        barred.allow_suppressed()
        assert torch.equal(changed(logits, barred), changed(logits, free))

    @given(
        words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=5),
        text=st.lists(st.integers(0, 3), min_size=1, max_size=12),
        is_counted=st.booleans(),
    )
    def test_bad_words_match_transformers_after_every_token(
        self, words: list[list[int]], text: list[int], is_counted: bool
    ) -> None:
        sampling = Sampling(frequency_penalty=0.5 if is_counted else 0.0)
        barred, free = (LogitProcessor(sampling, (), {7}, SIZE, bad) for bad in (map(tuple, [*words, [99]]), ()))
        reference = NoBadWordsLogitsProcessor(words)
        logits = random_logits(1, SIZE)[0]
        for count, token_id in enumerate(text, 1):
            barred.accept(token_id)
            free.accept(token_id)
            if count == 5:
                barred.allow_suppressed()
                free.allow_suppressed()
            expected = reference(torch.tensor([text[:count]]), changed(logits, free)[None])[0]
            assert torch.equal(changed(logits, barred), expected)

    def test_plain_sampling_changes_nothing(self) -> None:
        assert not LogitProcessor(Sampling(), range(10), (), SIZE).has_effect
        barred = LogitProcessor(Sampling(), range(10), {3}, SIZE)
        assert barred.has_effect
        barred.allow_suppressed()
        assert not barred.has_effect


class TestInBatches:
    @pytest.mark.parametrize("neighbours", [0, 3])
    def test_each_row_has_its_changes(self, neighbours: int) -> None:
        logits = random_logits(3 + neighbours, SIZE, scale=1.0)
        asked: tuple[dict[str, Any], ...] = (
            {"repetition_penalty": 5.0, "text": [1, 2], "request": {"prompt_ids": (30, 31)}},
            {"presence_penalty": 2.0, "text": list(range(39))},
            {"logit_bias": {17: 50.0}},
        )
        states = [state_of(SIZE, temperature=0.0, **each) for each in asked]
        states[1:1] = [state_of(SIZE, temperature=0.0) for _ in range(neighbours)]
        seen = torch.tensor([[30, 31, 1, 2]])
        first = int(RepetitionPenaltyLogitsProcessor(5.0)(seen, logits[:1].clone()).argmax())
        penalised = logits[1 + neighbours].clone()
        penalised[:39] -= 2
        expected = [first, *logits[1 : 1 + neighbours].argmax(-1).tolist(), int(penalised.argmax()), 17]
        assert ids(logits, *states) == expected

    def test_bias_beyond_vocabulary_is_refused(self) -> None:
        for token_id in (-1, SIZE):
            with pytest.raises(InvalidInput, match="from 0 to 39") as refused:
                state_of(SIZE, logit_bias={token_id: 1.0})
            assert refused.value.field == "logit_bias"

    def test_ids_beyond_vocabulary_are_ignored(self) -> None:
        request = {"prompt_ids": (1, 99), "stop_token_ids": frozenset({2, 99}), "min_tokens": 3}
        assert ids(random_logits(1, SIZE), state_of(SIZE, repetition_penalty=2.0, request=request))


AT_LEAST_TWO: dict[str, Any] = {"stop_token_ids": frozenset({3, 5}), "min_tokens": 2}


class TestMinTokens:
    def test_no_end_before_min_tokens(self) -> None:
        logits = torch.zeros(8)
        logits[[3, 5]] = 20
        for length, expected in ((0, {0, 1, 2, 4, 6, 7}), (1, {0, 1, 2, 4, 6, 7}), (2, {3, 5}), (3, {3, 5})):
            found = shares(logits, 100, text=[0] * length, request=AT_LEAST_TWO)
            assert set(np.flatnonzero(found)) == expected

    def test_greedy_is_plain_after_min_tokens(self) -> None:
        state = state_of(8, temperature=0.0, request=AT_LEAST_TWO)
        for was_plain in (False, False, True):
            assert state.is_plain_greedy == was_plain
            state.accept(1)

    def test_completed_constraint_ends_before_min_tokens(self) -> None:
        logits = torch.zeros(4, 8)
        logits[:, 3] = 20
        open_ended = {"matcher": AllowedIds(3, 5, 6)} | AT_LEAST_TWO
        at_its_end = {"matcher": AllowedIds(3, 5)} | AT_LEAST_TWO
        states = [
            state_of(8, temperature=0.0, request=open_ended),
            state_of(8, temperature=0.0, request=open_ended, text=[6, 6]),
            state_of(8, temperature=0.0, request=at_its_end),
            state_of(8, temperature=0.0, request=AT_LEAST_TWO),
        ]
        assert ids(logits, *states) == [6, 3, 3, 0]

    @pytest.mark.parametrize("vocabulary_size", [8, 32, 33, 70])
    def test_masks_end_with_the_vocabulary(self, vocabulary_size: int) -> None:
        last = vocabulary_size - 1
        request = {"matcher": AllowedIds(last), "stop_token_ids": frozenset({0, 500}), "min_tokens": 9}
        results = Sampler(CPU, vocabulary_size).sample(
            random_logits(2, vocabulary_size), [state_of(vocabulary_size), state_of(vocabulary_size, request=request)]
        )
        assert results[1].token_id == last  # type: ignore[union-attr]
