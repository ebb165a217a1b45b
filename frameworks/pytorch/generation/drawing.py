"""How a token is drawn from the logits of its row by one random number, and which tokens are candidates for it.

What a row gives is the same to the bit whatever rows stand beside it. Sums of floating-point numbers are not: their
order depends on shapes and devices. So the weights of a row are whole numbers, small enough that float64 holds every
sum of them exactly, and then no order matters. What else is done is done to each number alone, or compares.
"""

from typing import NamedTuple

import torch

from frameworks.pytorch.generation.searches import largest, nth_equal

BLOCK = 128
"""Columns that are summed as one; rows of weights are whole blocks long."""

_EXACT_BITS = 52  # float64 holds whole numbers of up to 53 bits
_CANDIDATES = 1024  # a nucleus is seldom larger, and where it is the whole row is sorted


class Cuts(NamedTuple):
    """What is cut off of each row. What cuts nothing off: all columns, 1 and 0.

    `top_k` int64, `top_p` and `min_p` float64 [rows, 1]. `candidates`: how many of a row are looked at, no fewer than
    the highest top_k that is below all columns. `are_all_known`: a row with another top_k is not among them.
    """

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    candidates: int
    are_all_known: bool

    def of(self, rows: torch.Tensor) -> "Cuts":
        """Those of some rows, int64 [rows]."""
        top_k, top_p, min_p = (cut.index_select(0, rows) for cut in self[:3])
        return self._replace(top_k=top_k, top_p=top_p, min_p=min_p)


def how_many_to_look_at(top_ks: list[int], columns: int) -> tuple[int, bool]:
    """`candidates` and `are_all_known` of the Cuts of rows with these top_k."""
    highest = max((top_k for top_k in top_ks if top_k < columns), default=0)
    are_all_known = max(top_ks) < columns
    return (highest, True) if are_all_known else (min(columns, max(highest, _CANDIDATES)), columns <= _CANDIDATES)


def one(columns: int) -> float:
    """The weight of the most likely token."""
    return float(1 << (_EXACT_BITS - max(columns - 1, 1).bit_length()))


def weigh(
    logits: torch.Tensor, maxima: torch.Tensor, temperatures: torch.Tensor | None, weights: torch.Tensor
) -> torch.Tensor:
    """Whole numbers in proportion to the probabilities, the greatest of a row `one(columns)`.

    `logits` and `weights`, which is filled and returned: float32 [rows, columns]; `maxima` and `temperatures` float32
    [rows, 1], None for 1 in every row. What is less likely than the greatest by more than that factor weighs nothing.
    """
    torch.sub(logits, maxima, out=weights)
    if temperatures is not None:
        # After the maximum is taken off: near 0 the quotients go to minus infinity and no further.
        weights.div_(temperatures)
    return weights.exp_().mul_(one(logits.shape[-1])).round_()


def log_totals(logits: torch.Tensor, maxima: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum of each row's exponentials, float64 [rows, 1]; shapes as for `weigh`."""
    columns = logits.shape[-1]
    total = weigh(logits, maxima, None, weights).sum(dim=-1, keepdim=True, dtype=torch.float64)
    return (total / one(columns)).log_() + maxima


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The inverse of the cumulative distribution in the order of the columns.

    `weights` float32 [rows, blocks * BLOCK], contiguous; `uniforms` float64 [rows, 1]; int64 [rows].
    """
    rows, columns = weights.shape
    blocks = columns // BLOCK
    sums = weights.view(rows, blocks, BLOCK).sum(dim=-1, dtype=torch.float64)
    ends = sums.cumsum(dim=-1)
    target = _share(ends[:, -1:], uniforms)
    block = torch.searchsorted(ends, target, right=True).clamp_(max=blocks - 1)
    start = (ends - sums).gather(1, block)
    first = torch.arange(0, rows * blocks, blocks, device=weights.device)
    within = weights.view(rows * blocks, BLOCK).index_select(0, first + block[:, 0]).double().cumsum(dim=-1)
    column = torch.searchsorted(within, target - start, right=True).clamp_(max=BLOCK - 1)
    return (block * BLOCK + column)[:, 0]


def draw_cut(weights: torch.Tensor, uniforms: torch.Tensor, cuts: Cuts) -> torch.Tensor:
    """As `draw`, of the candidates that are left, and in the order of falling weights; equal ones by their columns.

    First the `top_k` greatest are kept; of them the fewest that have `top_p` of their sum; of those, what has `min_p`
    of the greatest. One always stays. `weights` float32 [rows, columns].
    """
    falling = largest(weights, cuts.candidates)
    ends = falling.double().cumsum(dim=-1)
    kept = _count_kept(weights, falling, ends, cuts)
    target = _share(ends.gather(1, kept - 1), uniforms)
    place = torch.searchsorted(ends, target, right=True).clamp_(max=cuts.candidates - 1)
    value = falling.gather(1, place)
    earlier = place - (falling > value).sum(dim=-1, keepdim=True)
    drawn = nth_equal(weights, value[:, 0], earlier[:, 0])
    if not cuts.are_all_known:
        columns = weights.shape[-1]
        undecided = ((kept == cuts.candidates) & (cuts.top_k == columns))[:, 0].nonzero()[:, 0]
        if len(undecided):
            whole = cuts.of(undecided)._replace(candidates=columns, are_all_known=True)
            drawn.index_copy_(0, undecided, draw_cut(weights[undecided], uniforms[undecided], whole))
    return drawn


def _count_kept(weights: torch.Tensor, falling: torch.Tensor, ends: torch.Tensor, cuts: Cuts) -> torch.Tensor:
    """How many of the `falling` candidates stay, int64 [rows, 1]; where it is all of them, it may have to be more."""
    columns = weights.shape[-1]
    within = cuts.top_k.clamp(max=cuts.candidates)
    total = ends.gather(1, within - 1)
    if not cuts.are_all_known:
        total = torch.where(cuts.top_k == columns, weights.sum(dim=-1, keepdim=True, dtype=torch.float64), total)
    in_nucleus = ((ends - falling < cuts.top_p * total) | (cuts.top_p >= 1)).sum(dim=-1, keepdim=True)
    likely = (falling >= cuts.min_p * one(columns)).sum(dim=-1, keepdim=True)
    return torch.minimum(torch.minimum(within, in_nucleus), likely).clamp_(min=1)


def _share(total: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """A whole number from 0 up to but without the total."""
    return torch.minimum((total * uniforms).floor_(), total - 1)
