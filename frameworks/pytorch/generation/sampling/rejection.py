"""Rejection sampling of draft tokens: the distribution of the text is that of the model alone."""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class DraftDraw(NamedTuple):
    """A token that a draft model drew. `weights`: in proportion to its probabilities, float32 [vocabulary].
    `acceptance`, `redraw`: random numbers in [0, 1), used once.
    """

    token_id: int
    weights: torch.Tensor
    acceptance: float
    redraw: float


def accept_or_redraw(weights: torch.Tensor, draws: Sequence[DraftDraw]) -> torch.Tensor:
    """Return the token of each row, int64 [rows]: the draft token where it is accepted.

    `weights`: in proportion to the probabilities of the model, float32 [rows, vocabulary]. A token with probability p
    in the model and q in the draft model is accepted with probability min(1, p / q). Otherwise a token is drawn from
    the positive part of p - q. So the distribution is p for any q (Leviathan et al., ICML 2023; Chen et al., 2023).
    """
    device = weights.device
    ours, theirs = normalised(weights), normalised(torch.stack([draw.weights for draw in draws]))
    tokens = torch.tensor([draw.token_id for draw in draws], device=device)
    uniforms = torch.tensor([(draw.acceptance, draw.redraw) for draw in draws], dtype=torch.float64, device=device)
    p, q = (each.gather(1, tokens[:, None])[:, 0] for each in (ours, theirs))
    rejected = (uniforms[:, 0] * q >= p).nonzero()[:, 0]
    if len(rejected):
        remaining = (ours[rejected] - theirs[rejected]).clamp_(min=0)
        tokens.index_copy_(0, rejected, draw_by(remaining, uniforms[rejected, 1:]))
    return tokens


def draw_by(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample a token of each row by its random number: int64 [rows].

    `weights`: float32 or float64 [rows, vocabulary]; `uniforms`: float64 [rows, 1].
    """
    ends = weights.double().cumsum(dim=-1)
    # Below the sum, so that no token of weight 0 behind the last other one is drawn.
    target = torch.minimum(ends[:, -1:] * uniforms, ends[:, -1:] * (1 - torch.finfo(torch.float64).eps))
    return torch.searchsorted(ends, target, right=True).clamp_(max=weights.shape[-1] - 1)[:, 0]


def normalised(weights: torch.Tensor) -> torch.Tensor:
    """Return probabilities, float64 of the same shape."""
    doubles = weights.double()
    return doubles.div_(doubles.sum(dim=-1, keepdim=True))
