"""How a token is drawn from the logits of its row by one random number, and which tokens are candidates for it.

What a row gives is the same to the bit whatever rows stand beside it. Sums of floating-point numbers are not: their
order depends on shapes and devices. So the weights of a row are whole numbers, small enough that float64 holds every
sum of them exactly, and then no order matters. What else is done is done to each number alone, or compares.
"""

from typing import NamedTuple

import torch

from frameworks.pytorch.generation.searches import largest, nth_equal

_BLOCK = 128  # columns that are summed as one
_EXACT_BITS = 52  # float64 holds whole numbers of up to 53 bits
_CANDIDATES = 1024  # a nucleus is seldom larger; where it is, more are looked at
_MORE = 16
_LEAST = -60.0  # the exponential of it weighs nothing; below -87 the CPU takes 30 times as long for one


class SamplingWorkspace:
    """Buffers for a batch, grown to the largest: fresh pages at every step would cost more than the work.

    `weights` are whole blocks long; behind the columns they are 0.
    """

    def __init__(self, device: torch.device, columns: int) -> None:
        self.columns = columns
        self._weights = torch.zeros(0, -(-columns // _BLOCK) * _BLOCK, device=device)
        self._doubles = self._weights.double()

    def weights(self, rows: int) -> torch.Tensor:
        """float32 [rows, blocks * _BLOCK], contiguous."""
        if rows > len(self._weights):
            self._weights = self._weights.new_zeros(rows, self._weights.shape[1])
        return self._weights[:rows]

    def sums_of_blocks(self, weights: torch.Tensor) -> torch.Tensor:
        """Of what `weights` gave: float64 [rows, blocks]."""
        rows, length = weights.shape
        if rows > len(self._doubles):
            self._doubles = self._doubles.new_empty(rows, length)
        return self._doubles[:rows].copy_(weights).view(rows, length // _BLOCK, _BLOCK).sum(dim=-1)


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
    logits: torch.Tensor, maxima: torch.Tensor, temperatures: torch.Tensor | None, room: SamplingWorkspace
) -> torch.Tensor:
    """Whole numbers in proportion to the probabilities, the greatest of a row `one(columns)`: the room's weights.

    `logits`: float32 [rows, columns]; `maxima` and `temperatures` float32 [rows, 1], None for 1 in every row. What is
    less likely than the greatest by more than that factor weighs nothing.
    """
    weights = room.weights(len(logits))
    numbers = weights[:, : room.columns]
    torch.sub(logits, maxima, out=numbers)
    if temperatures is not None:
        # After the maximum is taken off: near 0 the quotients go to minus infinity and no further.
        numbers.div_(temperatures)
    numbers.clamp_(min=_LEAST).exp_().mul_(one(room.columns)).round_()
    return weights


def log_totals(logits: torch.Tensor, maxima: torch.Tensor, room: SamplingWorkspace) -> torch.Tensor:
    """The logarithm of the sum of each row's exponentials, float64 [rows, 1]; shapes as for `weigh`."""
    total = room.sums_of_blocks(weigh(logits, maxima, None, room)).sum(dim=-1, keepdim=True)
    return (total / one(room.columns)).log_() + maxima


def draw(weights: torch.Tensor, sums: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The inverse of the cumulative distribution in the order of the columns.

    `weights` and their `sums` as a SamplingWorkspace gives them; `uniforms` float64 [rows, 1]; int64 [rows].
    """
    rows, blocks = sums.shape
    ends = sums.cumsum(dim=-1)
    target = _share(ends[:, -1:], uniforms)
    block = torch.searchsorted(ends, target, right=True).clamp_(max=blocks - 1)
    start = (ends - sums).gather(1, block)
    first = torch.arange(0, rows * blocks, blocks, device=weights.device)
    within = weights.view(rows * blocks, _BLOCK).index_select(0, first + block[:, 0]).double().cumsum(dim=-1)
    column = torch.searchsorted(within, target - start, right=True).clamp_(max=_BLOCK - 1)
    return (block * _BLOCK + column)[:, 0]


def draw_cut(weights: torch.Tensor, totals: torch.Tensor, uniforms: torch.Tensor, cuts: Cuts) -> torch.Tensor:
    """As `draw`, of the candidates that are left, and in the order of falling weights; equal ones by their columns.

    First the `top_k` greatest are kept; of them the fewest that have `top_p` of their sum; of those, what has `min_p`
    of the greatest. One always stays. `weights` float32 [rows, columns]; `totals`, their sums, float64 [rows, 1].
    """
    columns = weights.shape[-1]
    falling = largest(weights, cuts.candidates).double()
    ends = falling.cumsum(dim=-1)
    rising = falling.neg()
    kept = _count_kept(rising, ends, totals, cuts, columns)
    target = _share(ends.gather(1, kept - 1), uniforms)
    place = torch.searchsorted(ends, target, right=True).clamp_(max=cuts.candidates - 1)
    value = rising.gather(1, place)
    earlier = place - torch.searchsorted(rising, value)
    drawn = nth_equal(weights, value[:, 0].neg().float(), earlier[:, 0])
    if not cuts.are_all_known:
        undecided = ((kept == cuts.candidates) & (cuts.top_k == columns))[:, 0].nonzero()[:, 0]
        if len(undecided):
            more = min(columns, _MORE * cuts.candidates)
            cuts = cuts.of(undecided)._replace(candidates=more, are_all_known=more == columns)
            again = draw_cut(weights[undecided], totals[undecided], uniforms[undecided], cuts)
            drawn.index_copy_(0, undecided, again)
    return drawn


def _count_kept(
    rising: torch.Tensor, ends: torch.Tensor, totals: torch.Tensor, cuts: Cuts, columns: int
) -> torch.Tensor:
    """How many of the candidates stay, int64 [rows, 1]; where it is all of them, it may have to be more.

    `rising`: the candidates' weights, below 0; `ends`: the sums of those up to each. Both float64 [rows, candidates].
    """
    within = cuts.top_k.clamp(max=cuts.candidates)
    total = torch.where(cuts.top_k == columns, totals, ends.gather(1, within - 1))
    in_nucleus = torch.searchsorted(ends, cuts.top_p * total).add_(1)
    likely = torch.searchsorted(rising, cuts.min_p * -one(columns), right=True)
    return torch.minimum(torch.minimum(within, in_nucleus), likely).clamp_(min=1)


def _share(total: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """A whole number from 0 up to but without the total."""
    return torch.minimum((total * uniforms).floor_(), total - 1)
