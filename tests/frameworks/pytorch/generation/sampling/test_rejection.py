"""Tokens that a draft model drew are accepted so that texts are distributed as without it."""

from collections import Counter

import numpy as np
import pytest
import torch

from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.sampling.rejection import DraftDraw, accept_or_redraw, draw_by
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.pytorch.generation.sampling.state import SamplingState
from tests.frameworks.pytorch.generation.sampling_cases import CPU, request_of

SIZE = 6


def exceeds_chance(seen: Counter[int], shares: list[float]) -> bool:
    """Whether a chi-square test rejects the shares; one of ten thousand right ones is rejected."""
    total = seen.total()
    kept = [token for token, share in enumerate(shares) if share > 0]
    assert set(seen) <= set(kept)
    statistic = sum((seen[token] - total * shares[token]) ** 2 / (total * shares[token]) for token in kept)
    freedom = len(kept) - 1
    # Wilson and Hilferty, 1931.
    return bool(statistic > freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3)


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_tokens_are_distributed_as_the_model(spread: float) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = 20_000
    ours = torch.rand(SIZE, generator=generator)
    ours[2] = 0
    theirs = ours * torch.exp(spread * torch.randn(SIZE, generator=generator))
    theirs[0] = 0 if spread else theirs[0]
    random = np.random.default_rng(3).random((rows, 3))
    drawn = draw_by(theirs.expand(rows, SIZE), torch.from_numpy(random[:, :1])).tolist()
    draws = [DraftDraw(token, theirs, *random[row, 1:]) for row, token in enumerate(drawn)]
    tokens = accept_or_redraw(ours.expand(rows, SIZE), draws).tolist()
    shares = (ours.double() / ours.double().sum()).tolist()
    assert not exceeds_chance(Counter(tokens), shares)
    accepted = sum(token == each for token, each in zip(tokens, drawn, strict=True)) / rows
    other = theirs.double() / theirs.double().sum()
    # The most that any method accepts: 1 minus the distance of the distributions. Four standard deviations.
    expected = float(torch.minimum(torch.tensor(shares), other).sum())
    assert abs(accepted - expected) < 4 * np.sqrt(0.25 / rows)
    assert (accepted == 1) == (spread == 0)


def test_last_token_of_weight_zero_is_not_drawn() -> None:
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0]])
    assert draw_by(weights, torch.tensor([[0.0]], dtype=torch.float64)).item() == 1
    assert draw_by(weights, torch.tensor([[1 - 2**-53]], dtype=torch.float64)).item() == 2


SAMPLINGS = (
    Sampling(seed=0), Sampling(temperature=0.6, seed=0), Sampling(top_k=5, seed=0), Sampling(top_p=0.6, seed=0),
    Sampling(min_p=0.2, top_k=30, seed=0), Sampling(top_k=7, top_p=0.5, temperature=1.7, seed=0),
    Sampling(logit_bias={3: 4.0}, top_k=3, seed=0),
)  # fmt: skip


def test_distribution_is_the_one_that_is_drawn_from() -> None:
    """Every candidate is drawn with its weight, and no other token: for many evenly spaced random numbers."""
    size, numbers = 40, 4000
    sampler = Sampler(CPU, size)
    logits = torch.randn(len(SAMPLINGS), size, generator=torch.Generator().manual_seed(7)) * 2
    logits[:, 5] = logits[:, 9]
    weights = sampler.distribution(logits, [state_of_sampling(each, size) for each in SAMPLINGS])
    for row, sampling in enumerate(SAMPLINGS):
        states = []
        for number in range(numbers):
            state = state_of_sampling(sampling, size)
            state.uniform = (number + 0.5) / numbers
            states.append(state)
        chosen = sampler.sample(logits[row : row + 1].expand(numbers, size), states)
        seen = Counter(each.token_id for each in chosen if isinstance(each, Sampled))
        shares = weights[row].double() / weights[row].double().sum()
        for token in range(size):
            assert abs(seen[token] - numbers * float(shares[token])) <= 1.001


def test_wide_nucleus_is_cut_at_the_same_token() -> None:
    """More candidates than are examined at first, many of them with equal weights."""
    size = 5000
    sampler = Sampler(CPU, size)
    logits = torch.round(torch.randn(2, size, generator=torch.Generator().manual_seed(3)) * 2) / 2
    states = [state_of_sampling(Sampling(top_p=0.95, seed=0), size), state_of_sampling(Sampling(top_k=3, seed=0), size)]
    weights = sampler.distribution(logits, states)
    falling, order = torch.sort(weights[0], descending=True, stable=True)
    num_kept = int((falling > 0).sum())
    probabilities = torch.softmax(logits[0].double(), -1)
    by_logit = torch.sort(logits[0], descending=True, stable=True).indices
    sums = probabilities[by_logit].cumsum(-1)
    assert num_kept > 1024
    assert abs(num_kept - (int((sums <= 0.95).sum()) + 1)) <= 1
    assert set(order[:num_kept].tolist()) == set(by_logit[:num_kept].tolist())
    assert int((weights[1] > 0).sum()) == 3


def test_rows_with_draws_leave_others_alone() -> None:
    size = 50
    sampler = Sampler(CPU, size)
    logits = torch.randn(4, size, generator=torch.Generator().manual_seed(5))
    plain = [state_of_sampling(each, size) for each in (Sampling(seed=1), Sampling(temperature=0), Sampling(seed=2))]
    alone = sampler.sample(logits[:3], plain)
    drafted = state_of_sampling(Sampling(seed=3, top_logprobs=2), size)
    drafted.draft = DraftDraw(int(logits[3].argmax()), torch.softmax(logits[3], -1), 0.999, 0.5)
    beside = sampler.sample(logits[[3, 0, 1, 2]], [drafted, *plain])
    assert beside[1:] == alone
    first = beside[0]
    assert isinstance(first, Sampled)
    assert first.token_id == int(logits[3].argmax()), "both models have the same distribution"
    assert first.logprob is not None
    assert abs(first.logprob - float(torch.log_softmax(logits[3], -1).max())) < 1e-4
    assert first.top_logprobs[0][0] == first.token_id


def state_of_sampling(sampling: Sampling, size: int) -> SamplingState:
    return SamplingState(request_of(sampling), size)
