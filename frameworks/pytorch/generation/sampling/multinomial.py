"""Sample a token from the softmax of each row of logits by one random number, after top-k, top-p and min-p.

A row's result has the same bits whatever the other rows of the batch are. The rounding of floating-point sums depends
on their order, so on shapes and devices. So the weights of a row are integers, so small that float64 represents every
sum of them exactly. All other operations are element-wise, or compare.
"""

from typing import NamedTuple

import torch

from frameworks.pytorch.generation.sampling.top_k import find_nth_equal, top_positions, top_values

_BLOCK = 128  # columns whose weights are summed together
_EXACT_BITS = 52  # float64 represents integers of up to 53 bits
_CANDIDATES = 1024  # the top-p set is rarely larger; if it is, more candidates are sorted
_MORE = 16
_MIN_EXPONENT = -60.0  # its exponential has weight 0; below -87 results are denormal, which take 30 times as long


class SamplingWorkspace:
    """Buffers for a batch, as large as the largest so far: new pages at every step would cost more than the work.

    `weights` are padded to whole blocks with 0.
    """

    def __init__(self, device: torch.device, columns: int) -> None:
        self.columns = columns
        self.max_weight = max_weight(columns)
        self._weights = torch.zeros(0, -(-columns // _BLOCK) * _BLOCK, device=device)
        self._doubles = self._weights.double()

    def weights(self, rows: int) -> torch.Tensor:
        """Return a buffer, float32 [rows, blocks * _BLOCK], contiguous."""
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
    """The top-k, top-p and min-p of each row. Values without effect: all columns, 1 and 0.

    `top_k` int64, `top_p` and `min_p` float64 [rows, 1]. `candidates`: number of sorted candidates, at least the
    highest top_k below all columns. `are_complete`: every row has such a top_k.
    """

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    candidates: int
    are_complete: bool

    def of(self, rows: torch.Tensor) -> "Truncation":
        """Return those of some rows. `rows`: int64 [rows]."""
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
    """Return the softmax of each row as integers of at most `max_weight(columns)`: float32 [rows, blocks * _BLOCK].

    `logits`: float32 [rows, columns]; `maxima` and `temperatures` float32 [rows, 1], None for 1 in every row. A token
    that is less likely than the most likely one by more than that factor has weight 0. The result is a buffer of the
    workspace.
    """
    weights = workspace.weights(len(logits))
    values = weights[:, : workspace.columns]
    torch.sub(logits, maxima, out=values)
    if temperatures is not None:
        # After the maximum is subtracted, so that quotients by a temperature near 0 are -inf at worst, never NaN.
        values.div_(temperatures)
    values.clamp_(min=_MIN_EXPONENT).exp_().mul_(workspace.max_weight).round_()
    return weights


def log_totals(logits: torch.Tensor, maxima: torch.Tensor, workspace: SamplingWorkspace) -> torch.Tensor:
    """Return the logsumexp of each row, float64 [rows, 1]; shapes as in `compute_weights`."""
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
    """Return the log softmax of the chosen token and of the top-k tokens of each row.

    `logits`: float32 [rows, columns] without NaN. `chosen`: int64 [rows]. `top`: k of each row; equal logits are
    ordered by id. A row's result has the same bits whatever the other rows are.
    """
    return listed(log_probability_table(logits, chosen, max(top), workspace), top)


def log_probability_table(
    logits: torch.Tensor, chosen: torch.Tensor, top: int, workspace: SamplingWorkspace
) -> torch.Tensor:
    """Return the log probability of the chosen token, then the ids of the top-k tokens, then theirs: float64 [rows,
    1 + 2 * top], where a smaller vocabulary has all its tokens. As `log_probabilities`, without a wait for the device.
    """
    totals = log_totals(logits, logits.amax(dim=-1, keepdim=True), workspace)
    of_chosen = logits.gather(1, chosen[:, None]) - totals
    most = min(top, logits.shape[-1])
    if not most:
        return of_chosen
    ids = top_positions(logits, most)
    return torch.cat((of_chosen, ids.double(), logits.gather(1, ids) - totals), 1)


def listed(table: torch.Tensor, top: list[int]) -> list[LogProbabilities]:
    """Return the rows of a `log_probability_table`, each with as many tokens as `top` has for it."""
    most = table.shape[1] // 2
    return [
        LogProbabilities(row[0], tuple(zip(map(int, row[1 : 1 + count]), row[1 + most :], strict=False)))
        for row, count in zip(table.tolist(), (min(each, most) for each in top), strict=True)
    ]


def draw_tokens(weights: torch.Tensor, sums: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample a token of each row by the inverse of its cumulative distribution: int64 [rows].

    `weights` and their `sums` as a SamplingWorkspace returns them; `uniforms` float64 [rows, 1].
    """
    rows, blocks = sums.shape
    ends = sums.cumsum(dim=-1)
    target = _target(ends[:, -1:], uniforms)
    block = torch.searchsorted(ends, target, right=True).clamp_(max=blocks - 1)
    start = (ends - sums).gather(1, block)
    first = torch.arange(0, rows * blocks, blocks, device=weights.device)
    within = weights.view(rows * blocks, _BLOCK).index_select(0, first + block[:, 0]).double().cumsum(dim=-1)
    column = torch.searchsorted(within, target - start, right=True).clamp_(max=_BLOCK - 1)
    return (block * _BLOCK + column)[:, 0]


def draw_truncated(
    weights: torch.Tensor, totals: torch.Tensor, uniforms: torch.Tensor, truncation: Truncation
) -> torch.Tensor:
    """As `draw_tokens`, of the tokens that top-k, top-p and min-p keep, by falling weight; equal ones by column.

    First the `top_k` largest are kept; of them the fewest whose sum reaches `top_p` of the total; of those, the ones
    with at least `min_p` of the largest. At least one remains. `weights` float32 [rows, columns]; `totals`, their
    sums, float64 [rows, 1].
    """
    columns = weights.shape[-1]
    falling = top_values(weights, truncation.candidates).double()
    ends = falling.cumsum(dim=-1)
    rising = falling.neg()
    kept = _count_kept(rising, ends, totals, truncation, columns)
    target = _target(ends.gather(1, kept - 1), uniforms)
    rank = torch.searchsorted(ends, target, right=True).clamp_(max=truncation.candidates - 1)
    value = rising.gather(1, rank)
    earlier = rank - torch.searchsorted(rising, value)
    drawn = find_nth_equal(weights, value[:, 0].neg().float(), earlier[:, 0])
    undecided = _undecided(kept, truncation, columns)
    if len(undecided):
        more = _more_candidates(truncation, undecided, columns)
        again = draw_truncated(weights[undecided], totals[undecided], uniforms[undecided], more)
        drawn.index_copy_(0, undecided, again)
    return drawn


def keep_candidates(weights: torch.Tensor, totals: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Return the weights that `draw_truncated` draws from, float32 [rows, columns]: 0 for tokens that are removed.

    Shapes and dtypes of the arguments as there.
    """
    columns = weights.shape[-1]
    falling = top_values(weights, truncation.candidates).double()
    kept = _count_kept(falling.neg(), falling.cumsum(dim=-1), totals, truncation, columns)
    least = falling.gather(1, kept - 1).float()
    is_larger, is_least = weights > least, weights == least
    is_kept = is_larger | (is_least & (is_least.cumsum(dim=-1) <= kept - is_larger.sum(dim=-1, keepdim=True)))
    found = torch.where(is_kept, weights, 0.0)
    undecided = _undecided(kept, truncation, columns)
    if len(undecided):
        more = _more_candidates(truncation, undecided, columns)
        found.index_copy_(0, undecided, keep_candidates(weights[undecided], totals[undecided], more))
    return found


def _undecided(kept: torch.Tensor, truncation: Truncation, columns: int) -> torch.Tensor:
    """Return the rows whose sorted candidates may not be all that remain, int64 [undecided rows]."""
    if truncation.are_complete:
        return kept.new_empty(0)
    return ((kept == truncation.candidates) & (truncation.top_k == columns))[:, 0].nonzero()[:, 0]


def _more_candidates(truncation: Truncation, rows: torch.Tensor, columns: int) -> Truncation:
    """Return the limits of some rows, int64 [rows], with more sorted candidates."""
    more = min(columns, _MORE * truncation.candidates)
    return truncation.of(rows)._replace(candidates=more, are_complete=more == columns)


def _count_kept(
    rising: torch.Tensor, ends: torch.Tensor, totals: torch.Tensor, truncation: Truncation, columns: int
) -> torch.Tensor:
    """Return how many candidates remain, int64 [rows, 1]; if all of them do, more may have to be sorted.

    `rising`: the negated weights of the candidates; `ends`: cumulative sums. Both float64 [rows, candidates].
    """
    within = truncation.top_k.clamp(max=truncation.candidates)
    total = torch.where(truncation.top_k == columns, totals, ends.gather(1, within - 1))
    in_top_p = torch.searchsorted(ends, truncation.top_p * total).add_(1)
    likely = torch.searchsorted(rising, truncation.min_p * -max_weight(columns), right=True)
    return torch.minimum(torch.minimum(within, in_top_p), likely).clamp_(min=1)


def _target(total: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the integer of each row in [0, total) at which its cumulative sum is searched, float64 [rows, 1]."""
    return torch.minimum((total * uniforms).floor_(), total - 1)
