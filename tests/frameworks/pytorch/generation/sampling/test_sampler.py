"""Sampled tokens compared with transformers and plain arithmetic; failures of rows."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from frameworks.core.errors import InvalidInput, ModelFailed
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.types import Array
from tests.frameworks.pytorch.generation.sampling_cases import (
    CPU,
    AllowedIds,
    ids,
    random_logits,
    sample,
    shares,
    state_of,
)

pytestmark = pytest.mark.usefixtures("_searched_by")
ROUNDS = 500


def probabilities_by_transformers(
    logits: torch.Tensor, *, temperature: float, top_k: int | None, top_p: float, min_p: float
) -> Array:
    scores = logits.double()[None]
    nothing = torch.zeros(1, 0, dtype=torch.long)
    scores = reference.TemperatureLogitsWarper(temperature)(nothing, scores)
    if top_k is not None:
        scores = reference.TopKLogitsWarper(top_k)(nothing, scores)
    if top_p < 1:
        scores = reference.TopPLogitsWarper(top_p)(nothing, scores)
    if min_p > 0:
        scores = reference.MinPLogitsWarper(min_p)(nothing, scores)
    return np.asarray(scores.softmax(-1)[0])


def chi_square_is_likely(counts: Array, shares_expected: Array) -> bool:
    """Compare within four standard deviations of independent draws; rare tokens count as one."""
    expected = shares_expected * counts.sum()
    rare = expected < 5
    counts, expected = (np.append(each[~rare], each[rare].sum()) for each in (counts, expected))
    statistic, freedom = ((counts - expected) ** 2 / np.maximum(expected, 1)).sum(), len(counts) - 1
    return bool(abs(statistic - freedom) < 4 * math.sqrt(2 * freedom))


class TestDrawing:
    @pytest.mark.parametrize(
        ("vocabulary_size", "scale"), [(50, 3.0), (1500, 4.0), (1500, 0.3)], ids=["small", "peaked", "flat"]
    )
    @pytest.mark.parametrize(
        "cuts",
        [
            {},
            {"top_k": 5},
            {"top_p": 0.9},
            {"min_p": 0.1},
            {"top_k": 30, "top_p": 0.8},
            {"top_k": 20, "top_p": 0.95, "min_p": 0.05},
            {"top_p": 0.999, "min_p": 0.001},
            {"top_p": 0.01},
            {"top_k": 1400, "top_p": 0.99},
        ],
        ids=str,
    )
    def test_frequencies_equal_transformers(self, vocabulary_size: int, scale: float, cuts: dict[str, float]) -> None:
        temperature = 0.6 if "top_p" in cuts else 1.0
        logits = random_logits(1, vocabulary_size, seed=vocabulary_size, scale=scale)[0]
        asked = {"top_k": None, "top_p": 1.0, "min_p": 0.0} | cuts
        expected = probabilities_by_transformers(logits, temperature=temperature, **asked)  # type: ignore[arg-type]
        found = shares(logits, ROUNDS, temperature=temperature, **cuts)
        assert np.abs(found - expected * ROUNDS).max() <= 1 + 1e-2
        assert set(np.flatnonzero(found)) <= set(np.flatnonzero(expected))
        assert set(np.flatnonzero(found)) >= set(np.flatnonzero(expected * ROUNDS > 1 + 1e-2))

    @pytest.mark.parametrize("scale", [4.0, 0.01])
    def test_every_kept_token_is_reachable(self, scale: float) -> None:
        """A high temperature gives every token an equal share, so all are drawn."""
        logits = random_logits(1, 300, scale=scale)[0]
        kept = np.flatnonzero(probabilities_by_transformers(logits, temperature=1.0, top_k=200, top_p=0.97, min_p=1e-4))
        reached = {token_id for token_id in range(300) if token_id in kept}
        found: set[int] = set()
        state = state_of(300, top_k=200, top_p=0.97, min_p=1e-4)
        sizes = np.sort(logits.double().softmax(-1).numpy()[kept])[::-1]
        for middle in (np.cumsum(sizes) - sizes / 2) / sizes.sum():
            state.uniform = float(middle)
            found.update(ids(logits[None], state))
        assert found == reached

    def test_large_nucleus_equals_transformers(self) -> None:
        """The nucleus exceeds the first and the second search."""
        logits = random_logits(1, 30_000, scale=0.1)
        falling = logits[0].double().softmax(-1).sort(descending=True)
        rank_of = falling.indices.argsort()
        ends = falling.values.cumsum(0)
        kept = int((ends < 0.9).sum()) + 1
        assert kept > 20_000
        state = state_of(30_000, top_p=0.9)
        for uniform in (0.0, 0.001, 0.3, 0.8, 1 - 2**-53):
            state.uniform = uniform
            (drawn,) = ids(logits, state)
            expected = min(int((ends <= uniform * ends[kept - 1]).sum()), kept - 1)
            assert abs(int(rank_of[drawn]) - expected) <= 1

    def test_seeded_frequencies_match_distribution(self) -> None:
        logits = random_logits(1, 12, scale=1.0)
        state = state_of(12, seed=7)
        drawn = []
        sampler = Sampler(CPU, 12)
        for _ in range(3000):
            (result,) = sampler.sample(logits, [state])
            assert isinstance(result, Sampled)
            drawn.append(result.token_id)
            state.accept(result.token_id)
        share = logits[0].double().softmax(-1).numpy()
        assert chi_square_is_likely(np.bincount(drawn, minlength=12), share)
        pairs = np.bincount(np.array(drawn[:-1]) * 12 + np.array(drawn[1:]), minlength=144)
        assert chi_square_is_likely(pairs, np.outer(share, share).ravel()), "each is drawn without regard to the last"

    @pytest.mark.parametrize("cuts", [{}, {"top_p": 0.5}, {"top_k": 2}], ids=str)
    def test_extreme_random_numbers_draw_allowed_tokens(self, cuts: dict[str, Any]) -> None:
        logits = torch.tensor([[0.0, -math.inf, 1.0, -math.inf, 0.5, -50.0, -math.inf]])
        for uniform in (0.0, 5e-324, 0.5, 1 - 2**-53):
            state = state_of(7, **cuts)
            state.uniform = uniform
            assert ids(logits, state)[0] in (0, 2, 4)

    def test_ties_keep_first_tokens(self) -> None:
        logits = torch.zeros(10)
        logits[3] = -1
        assert set(np.flatnonzero(shares(logits, 100, top_k=4))) == {0, 1, 2, 4}
        assert set(np.flatnonzero(shares(logits, 100, top_p=0.3))) == {0, 1, 2}
        assert set(np.flatnonzero(shares(logits, 100, top_k=1))) == {0}

    @given(temperature=st.sampled_from([0.0, 1e-12, 1e-6, 1e-4]), seed=st.integers(0, 50))
    def test_low_temperature_is_greedy(self, temperature: float, seed: int) -> None:
        logits = random_logits(1, 20, seed=seed)
        assert ids(logits, state_of(20, temperature=temperature, seed=seed)) == logits.argmax(-1).tolist()

    @pytest.mark.parametrize("cuts", [{"top_k": 0}, {"top_k": 99}, {"top_p": 1.5}, {"min_p": -1.0}], ids=str)
    def test_neutral_options_change_nothing(self, cuts: dict[str, float]) -> None:
        logits = random_logits(1, 30)[0]
        np.testing.assert_allclose(shares(logits, 500, **cuts), shares(logits, 500), atol=2)


class TestGreedy:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_greedy_takes_first_maximum(self, dtype: torch.dtype) -> None:
        logits = torch.tensor([[1.0, 7.0, 7.0, -1.0], [3.0, -math.inf, 0.0, 3.0]]).to(dtype)
        greedy = [state_of(4, temperature=0.0) for _ in range(2)]
        assert ids(logits, *greedy) == [1, 0]
        drawn = state_of(4, top_k=1), state_of(4, top_p=0.0)
        assert ids(logits, *drawn) == [1, 0]

    def test_greedy_follows_logit_changes(self) -> None:
        logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 4)
        states = (
            state_of(4, temperature=0.0, logit_bias={1: 2.5}),
            state_of(4, temperature=0.0, presence_penalty=1.5, text=[3]),
            state_of(4, temperature=0.0, request={"matcher": AllowedIds(0, 1)}),
            state_of(4, temperature=0.0),
        )
        assert ids(logits, *states) == [1, 2, 1, 3]


class TestLogprobs:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_logprobs_are_log_softmax_of_raw_logits(self, dtype: torch.dtype) -> None:
        logits = random_logits(5, 600, scale=6.0).to(dtype)
        expected = logits.float().log_softmax(-1)
        states = [
            state_of(600, temperature=0.0, top_logprobs=3),
            state_of(600, temperature=0.3, top_p=0.5, top_logprobs=0, logit_bias={5: 100.0}),
            state_of(600),
            state_of(600, temperature=2.0, top_logprobs=20, repetition_penalty=2.0, text=[1, 2, 3]),
            state_of(600, top_logprobs=1, request={"matcher": AllowedIds(7)}),
        ]
        results = sample(logits, *states)
        assert (results[1].token_id, results[4].token_id) == (5, 7)
        assert (results[2].logprob, results[2].top_logprobs) == (None, ())
        for row, count in ((0, 3), (1, 0), (3, 20), (4, 1)):
            result = results[row]
            assert result.logprob == pytest.approx(expected[row, result.token_id].item(), abs=1e-5)
            values, positions = expected[row].sort(descending=True, stable=True)
            assert [token_id for token_id, _ in result.top_logprobs] == positions[:count].tolist()
            assert [each for _, each in result.top_logprobs] == pytest.approx(values[:count].tolist(), abs=1e-5)

    def test_more_logprobs_than_tokens_give_all(self) -> None:
        logits = torch.tensor([[-0.0, 0.0, -math.inf, 2.0, -3.0]])
        (result,) = sample(logits, state_of(5, temperature=0.0, top_logprobs=9))
        assert [token_id for token_id, _ in result.top_logprobs] == [3, 0, 1, 4, 2]
        assert sum(math.exp(logprob) for _, logprob in result.top_logprobs) == pytest.approx(1)

    def test_logprobs_of_equal_logits_are_exact(self) -> None:
        logits = torch.full((1, 100_000), 1e4)
        (result,) = sample(logits, state_of(100_000, top_logprobs=0))
        assert result.logprob == pytest.approx(-math.log(100_000), abs=1e-3)


class TestFailures:
    def test_nan_row_fails_alone(self) -> None:
        logits = random_logits(6, 40)
        expected = logits.argmax(-1).tolist()
        logits[1, 3] = math.nan
        logits[2] = math.nan
        logits[3, 5] = math.inf
        for temperature in (0.0, 1e-4):
            states = [state_of(40, temperature=temperature, top_logprobs=1, top_p=0.9) for _ in range(6)]
            plain = [state_of(40, temperature=temperature) for _ in range(6)]
            for asked in (states, plain):
                results = Sampler(CPU, 40).sample(logits, asked)
                assert [isinstance(result, ModelFailed) for result in results] == [
                    False,
                    True,
                    True,
                    True,
                    False,
                    False,
                ]
                assert [result.token_id for result in results if isinstance(result, Sampled)] == [
                    expected[row] for row in (0, 4, 5)
                ]

    def test_fully_masked_row_fails_alone(self) -> None:
        states = [
            state_of(8, temperature=0.0, request={"matcher": AllowedIds()}),
            state_of(8, logit_bias=dict.fromkeys(range(8), -math.inf)),
            state_of(8, text=[1], request={"bad_sequences": tuple((1, token_id) for token_id in range(8))}),
            state_of(8, temperature=0.0),
        ]
        logits = random_logits(4, 8)
        constraint, bias, words, chosen = Sampler(CPU, 8).sample(logits, states)
        assert isinstance(constraint, InvalidInput)
        assert constraint.field == "constraint"
        assert isinstance(bias, InvalidInput)
        assert bias.field == "logit_bias"
        assert isinstance(words, InvalidInput)
        assert words.field == "bad_words"
        assert chosen == Sampled(int(logits[3].argmax()))

    def test_row_with_failed_constraint_fails_alone(self) -> None:
        class Broken(AllowedIds):
            def fill_mask(self, mask: object) -> None:
                raise InvalidInput("constraint", "too complex")

        states = [
            state_of(8),
            state_of(8, request={"matcher": Broken()}),
            state_of(8, request={"matcher": AllowedIds(5)}),
        ]
        free, broken, bound = Sampler(CPU, 8).sample(random_logits(3, 8), states)
        assert isinstance(broken, InvalidInput)
        assert isinstance(free, Sampled)
        assert bound == Sampled(5)

    def test_sampling_keeps_thread_count(self) -> None:
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            Sampler(CPU, 8).sample(random_logits(1, 8), [state_of(8)])
            with pytest.raises(ValueError, match="shorter"):
                Sampler(CPU, 8).sample(random_logits(1, 8), [state_of(8, temperature=0.0) for _ in range(2)])
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(before)

    def test_no_rows_give_no_tokens(self) -> None:
        assert Sampler(CPU, 8).sample(torch.empty(0, 8), []) == []
