"""Draw a token from the logits of each row by one random number, among the candidates that truncation leaves.

A row's result has the same bits whatever rows are computed with it. Sums of floating-point numbers depend on shapes and
devices, because their order does. So the weights of a row are whole numbers, small enough that float64 holds every sum
of them exactly; then no order matters. All other work is per number, or compares.
"""

from typing import NamedTuple

import torch

from frameworks.pytorch.generation.sampling.top_k import find_nth_equal, top_positions, top_values

_BLOCK = 128  # columns that are summed as max_weight
_EXACT_BITS = 52  # float64 holds whole numbers of up to 53 bits
_CANDIDATES = 1024  # a nucleus is rarely larger; if it is, more candidates are examined
_MORE = 16
_LEAST = -60.0  # its exponential has weight 0; below -87 the CPU takes 30 times as long for one


class SamplingWorkspace:
    """Buffers for a batch, grown to the largest: fresh pages at every step would cost more than the work.

    `weights` are whole blocks long; behind the columns they are 0.
    """

    def __init__(self, device: torch.device, columns: int) -> None:
        self.columns = columns
        self.max_weight = max_weight(columns)
        self._weights = torch.zeros(0, -(-columns // _BLOCK) * _BLOCK, device=device)
        self._doubles = self._weights.double()

    def weights(self, rows: int) -> torch.Tensor:
        """float32 [rows, blocks * _BLOCK], contiguous."""
        if rows > len(self._weights):
            self._weights = self._weights.new_zeros(rows, self._weights.shape[1])
        return self._weights[:rows]

    def sums_of_blocks(self, weights: torch.Tensor) -> torch.Tensor:
        """Sum each block of what `weights` returned: float64 [rows, blocks]."""
        rows, length = weights.shape
        if rows > len(self._doubles):
            self._doubles = self._doubles.new_empty(rows, length)
        return self._doubles[:rows].copy_(weights).view(rows, length // _BLOCK, _BLOCK).sum(dim=-1)


class Truncation(NamedTuple):
    """Limits of each row's candidates. Values without effect: all columns, 1 and 0.

    `top_k` int64, `top_p` and `min_p` float64 [rows, 1]. `candidates`: number of examined candidates, at least the
    highest top_k below all columns. `are_complete`: every row has such a top_k.
    """

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    candidates: int
    are_complete: bool

    def of(self, rows: torch.Tensor) -> "Truncation":
        """Those of some rows, int64 [rows]."""
        top_k, top_p, min_p = (cut.index_select(0, rows) for cut in self[:3])
        return self._replace(top_k=top_k, top_p=top_p, min_p=min_p)


def num_candidates(top_ks: list[int], columns: int) -> tuple[int, bool]:
    """Return `candidates` and `are_complete` for rows with these top_k."""
    highest = max((top_k for top_k in top_ks if top_k < columns), default=0)
    are_complete = max(top_ks) < columns
    return (highest, True) if are_complete else (min(columns, max(highest, _CANDIDATES)), columns <= _CANDIDATES)


def max_weight(columns: int) -> float:
    """Return the weight of the most likely token."""
    return float(1 << (_EXACT_BITS - max(columns - 1, 1).bit_length()))


def compute_weights(
    logits: torch.Tensor, maxima: torch.Tensor, temperatures: torch.Tensor | None, workspace: SamplingWorkspace
) -> torch.Tensor:
    """Return whole numbers in proportion to the probabilities, the largest of a row `max_weight(columns)`.

    `logits`: float32 [rows, columns]; `maxima` and `temperatures` float32 [rows, 1], None for 1 in every row. A token
    that is less likely than the most likely one by more than that factor has weight 0. The result is a buffer of the
    workspace.
    """
    weights = workspace.weights(len(logits))
    numbers = weights[:, : workspace.columns]
    torch.sub(logits, maxima, out=numbers)
    if temperatures is not None:
        # After the maximum is subtracted: near 0 the quotients then go to minus infinity, and no further.
        numbers.div_(temperatures)
    numbers.clamp_(min=_LEAST).exp_().mul_(workspace.max_weight).round_()
    return weights


def log_totals(logits: torch.Tensor, maxima: torch.Tensor, workspace: SamplingWorkspace) -> torch.Tensor:
    """Return the logarithm of each row's sum of exponentials, float64 [rows, 1]; shapes as in `compute_weights`."""
    total = workspace.sums_of_blocks(compute_weights(logits, maxima, None, workspace)).sum(dim=-1, keepdim=True)
    return (total / workspace.max_weight).log_() + maxima


class LogProbabilities(NamedTuple):
    """`logprob` of the chosen token. `top`: the most likely tokens as (token id, log probability), by falling
    probability.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


def log_probabilities(
    logits: torch.Tensor, chosen: torch.Tensor, top: list[int], workspace: SamplingWorkspace
) -> list[LogProbabilities]:
    """Return the log probabilities of each row of `logits`, float32 [rows, columns] without NaN.

    `chosen`: int64 [rows]. `top`: number of most likely tokens per row; equal ones are ordered by id. A row's result
    has the same bits whatever rows are computed with it.
    """
    totals = log_totals(logits, logits.amax(dim=-1, keepdim=True), workspace)
    of_chosen = (logits.gather(1, chosen[:, None]) - totals)[:, 0].tolist()
    most = min(max(top), logits.shape[-1])
    if not most:
        return [LogProbabilities(logprob, ()) for logprob in of_chosen]
    ids = top_positions(logits, most)
    of_top = (logits.gather(1, ids) - totals).tolist()
    return [
        LogProbabilities(logprob, tuple(zip(ids_of_row[:count], logprobs[:count], strict=True)))
        for logprob, ids_of_row, logprobs, count in zip(of_chosen, ids.tolist(), of_top, top, strict=True)
    ]


def draw_tokens(weights: torch.Tensor, sums: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution in the order of the columns.

    `weights` and their `sums` as a SamplingWorkspace returns them; `uniforms` float64 [rows, 1]; int64 [rows].
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


def draw_truncated(
    weights: torch.Tensor, totals: torch.Tensor, uniforms: torch.Tensor, truncation: Truncation
) -> torch.Tensor:
    """As `draw_tokens`, but of the remaining candidates, by falling weight; equal ones by column.

    First the `top_k` largest are kept; of them the fewest that have `top_p` of their sum; of those, the ones with
    `min_p` of the largest. At least one remains. `weights` float32 [rows, columns]; `totals`, their sums, float64
    [rows, 1].
    """
    columns = weights.shape[-1]
    falling = top_values(weights, truncation.candidates).double()
    ends = falling.cumsum(dim=-1)
    rising = falling.neg()
    kept = _count_kept(rising, ends, totals, truncation, columns)
    target = _share(ends.gather(1, kept - 1), uniforms)
    place = torch.searchsorted(ends, target, right=True).clamp_(max=truncation.candidates - 1)
    value = rising.gather(1, place)
    earlier = place - torch.searchsorted(rising, value)
    drawn = find_nth_equal(weights, value[:, 0].neg().float(), earlier[:, 0])
    if not truncation.are_complete:
        undecided = ((kept == truncation.candidates) & (truncation.top_k == columns))[:, 0].nonzero()[:, 0]
        if len(undecided):
            truncation = _more_candidates(truncation, undecided, columns)
            again = draw_truncated(weights[undecided], totals[undecided], uniforms[undecided], truncation)
            drawn.index_copy_(0, undecided, again)
    return drawn


def keep_candidates(weights: torch.Tensor, totals: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Return the weights with 0 for those that are no candidates: what `draw_truncated` draws from.

    Shapes and dtypes as there; float32 [rows, columns].
    """
    columns = weights.shape[-1]
    falling = top_values(weights, truncation.candidates).double()
    kept = _count_kept(falling.neg(), falling.cumsum(dim=-1), totals, truncation, columns)
    least = falling.gather(1, kept - 1).float()
    is_larger, is_least = weights > least, weights == least
    is_kept = is_larger | (is_least & (is_least.cumsum(dim=-1) <= kept - is_larger.sum(dim=-1, keepdim=True)))
    found = torch.where(is_kept, weights, 0.0)
    if not truncation.are_complete:
        undecided = ((kept == truncation.candidates) & (truncation.top_k == columns))[:, 0].nonzero()[:, 0]
        if len(undecided):
            again = keep_candidates(
                weights[undecided], totals[undecided], _more_candidates(truncation, undecided, columns)
            )
            found.index_copy_(0, undecided, again)
    return found


def _more_candidates(truncation: Truncation, rows: torch.Tensor, columns: int) -> Truncation:
    """Return the limits of some rows, int64 [rows], with more examined candidates."""
    more = min(columns, _MORE * truncation.candidates)
    return truncation.of(rows)._replace(candidates=more, are_complete=more == columns)


def _count_kept(
    rising: torch.Tensor, ends: torch.Tensor, totals: torch.Tensor, truncation: Truncation, columns: int
) -> torch.Tensor:
    """Return how many candidates remain, int64 [rows, 1]; if all of them do, more may have to be examined.

    `rising`: the negated weights of the candidates; `ends`: cumulative sums. Both float64 [rows, candidates].
    """
    within = truncation.top_k.clamp(max=truncation.candidates)
    total = torch.where(truncation.top_k == columns, totals, ends.gather(1, within - 1))
    in_nucleus = torch.searchsorted(ends, truncation.top_p * total).add_(1)
    likely = torch.searchsorted(rising, truncation.min_p * -max_weight(columns), right=True)
    return torch.minimum(torch.minimum(within, in_nucleus), likely).clamp_(min=1)


def _share(total: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return a whole number from 0 up to but excluding the total."""
    return torch.minimum((total * uniforms).floor_(), total - 1)
