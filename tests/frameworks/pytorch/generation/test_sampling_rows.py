"""Rows are independent of their batch, their place and preemptions."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.sampling.sampler import Sampler
from frameworks.pytorch.generation.sampling.state import SamplingState
from tests.frameworks.pytorch.generation.sampling_cases import (
    CPU,
    AllowedIds,
    ids,
    random_logits,
    request_of,
    sample,
    state_of,
)

SIZES = (33, 1100, 2048)
SAMPLINGS = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, -0.4]),
    logit_bias=st.sampled_from([{}, {}, {3: 1.5, 30: -2.0}]),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([None, None, 1, 4, 25, 1050]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.3]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.9]),
    seed=st.integers(0, 2**64),
    top_logprobs=st.sampled_from([None, None, 0, 2, 20]),
)
ROWS = st.lists(st.tuples(SAMPLINGS, st.booleans(), st.integers(0, 9)), min_size=1, max_size=7)
Row = tuple[Sampling, bool, int]


def states_of(rows: Sequence[Row], vocabulary_size: int) -> list[SamplingState]:
    states = []
    for sampling, is_constrained, length in rows:
        matcher = AllowedIds(*range(1, vocabulary_size, 3)) if is_constrained else None
        request = request_of(
            sampling, prompt_ids=(2, 5, 2, 7), matcher=matcher, min_tokens=5, stop_token_ids=frozenset({1, 4})
        )
        state = SamplingState(request, vocabulary_size)
        for token_id in range(length):
            state.accept(token_id % 4)
        states.append(state)
    return states


def check_rows(rows: list[Row], logits: torch.Tensor, order: Sequence[int]) -> None:
    """Sample rows alone, together, and together in another order."""
    device, vocabulary_size = logits.device, logits.shape[-1]
    alone = [
        Sampler(device, vocabulary_size).sample(logits[i : i + 1], states_of([row], vocabulary_size))[0]
        for i, row in enumerate(rows)
    ]
    sampler = Sampler(device, vocabulary_size)
    before = logits.clone()
    states = states_of(rows, vocabulary_size)
    assert sampler.sample(logits, states) == alone
    assert sampler.sample(logits, states) == alone, "choosing changes no state"
    shuffled = sampler.sample(logits[list(order)], [states[row] for row in order])
    assert shuffled == [alone[row] for row in order]
    assert torch.equal(logits, before)


def logits_for(rows: int, vocabulary_size: int, seed: int, kind: str) -> torch.Tensor:
    """`tied`: few different numbers, so that many are equal, as in bfloat16."""
    logits = random_logits(rows, vocabulary_size, seed, scale=0.05 if kind == "flat" else 3.0)
    return logits.round() if kind == "tied" else logits.to(torch.bfloat16) if kind == "bf16" else logits


class TestRowsAreIndependent:
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(
        rows=ROWS,
        vocabulary_size=st.sampled_from(SIZES),
        seed=st.integers(0, 1000),
        kind=st.sampled_from(["peaked", "flat", "tied", "bf16"]),
        data=st.data(),
    )
    @pytest.mark.usefixtures("_searched_by")
    def test_row_is_independent_of_batch_and_position(
        self, rows: list[Row], vocabulary_size: int, seed: int, kind: str, data: st.DataObject
    ) -> None:
        order = data.draw(st.permutations(range(len(rows))))
        check_rows(rows, logits_for(len(rows), vocabulary_size, seed, kind), order)

    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(rows=ROWS, vocabulary_size=st.sampled_from(SIZES), seed=st.integers(0, 1000), is_tied=st.booleans())
    def test_numpy_and_torch_searches_agree(
        self, monkeypatch: pytest.MonkeyPatch, rows: list[Row], vocabulary_size: int, seed: int, is_tied: bool
    ) -> None:
        logits = logits_for(len(rows), vocabulary_size, seed, "tied" if is_tied else "peaked")
        by_numpy = sample(logits, *states_of(rows, vocabulary_size))
        with monkeypatch.context() as patch:
            patch.setattr("frameworks.pytorch.generation.sampling.top_k._uses_numpy", lambda _: False)
            assert sample(logits, *states_of(rows, vocabulary_size)) == by_numpy

    @pytest.mark.parametrize("vocabulary_size", [31, 4097, 32_000])
    def test_long_rows_in_large_batch_agree(self, vocabulary_size: int) -> None:
        """Vector instructions process numbers across the ends of rows."""
        rows: list[Row] = [
            (Sampling(temperature=0.8, seed=seed, top_logprobs=5, **cuts), False, 0)
            for seed in range(9)
            for cuts in ({}, {"top_p": 0.99}, {"top_k": 20})
        ]
        check_rows(rows, random_logits(len(rows), vocabulary_size), range(len(rows))[::-1])

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that torch can drive")
    @settings(max_examples=20)
    @given(rows=ROWS, vocabulary_size=st.sampled_from([*SIZES, 50_257]), seed=st.integers(0, 1000), data=st.data())
    def test_rows_are_independent_on_gpu(
        self, rows: list[Row], vocabulary_size: int, seed: int, data: st.DataObject
    ) -> None:
        order = data.draw(st.permutations(range(len(rows))))
        check_rows(rows, random_logits(len(rows), vocabulary_size, seed).cuda(), order)


class TestSeeds:
    def texts(self, *seeds: int | None, cuts: dict[str, Any] | None = None) -> list[list[int]]:
        """Return the texts of these sequences in one batch, with separate logits at every step."""
        states = [state_of(50, seed=seed, **cuts or {}) for seed in seeds]
        sampler = Sampler(CPU, 50)
        texts: list[list[int]] = [[] for _ in seeds]
        for step in range(30):
            found = sampler.sample(random_logits(1, 50, seed=step, scale=1.0).expand(len(seeds), 50), states)
            for state, text, token in zip(states, texts, found, strict=True):
                state.accept(token.token_id)  # type: ignore[union-attr]
                text.append(token.token_id)  # type: ignore[union-attr]
        return texts

    def test_seed_gives_same_text_in_any_batch(self) -> None:
        (alone,) = self.texts(11)
        among = self.texts(1, 11, 2, -3, 11)
        assert among[1] == among[4] == alone
        assert len({tuple(text) for text in among}) == 4
        assert self.texts(11, cuts={"top_p": 0.8}) == self.texts(11, cuts={"top_p": 0.8})

    def test_seeds_give_different_texts(self) -> None:
        texts = self.texts(0, 1, -1, 2**64 - 2, 2**63, None, None)
        assert len({tuple(text) for text in texts}) == 7

    def test_paused_sequence_continues_its_draws(self) -> None:
        """Other sequences continue, start and end meanwhile."""
        (expected,) = self.texts(5)
        state, text, sampler = state_of(50, seed=5), [], Sampler(CPU, 50)
        for step in range(30):
            logits = random_logits(1, 50, seed=step, scale=1.0)
            sampler.sample(logits.expand(3, 50), [state_of(50, seed=step), state_of(50), state_of(50, temperature=0.0)])
            row = step % 3
            neighbours = [state_of(50, seed=100 + step, top_k=7) for _ in range(3)]
            (token_id,) = ids(logits.expand(4, 50), *neighbours[:row], state, *neighbours[row:])[row : row + 1]
            state.accept(token_id)
            text.append(token_id)
        assert text == expected
