"""Log probabilities of the model's own logits, the same to the bit whatever rows stand beside a row."""

from typing import NamedTuple

import torch

from frameworks.pytorch.generation.drawing import log_totals
from frameworks.pytorch.generation.searches import largest

_ID_BITS = 32


class LogProbabilities(NamedTuple):
    """`logprob` of the chosen token, and the most likely: (token id, log probability), by falling probability."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def log_probabilities(
    logits: torch.Tensor, chosen: torch.Tensor, top: list[int], weights: torch.Tensor
) -> list[LogProbabilities]:
    """For each row of `logits`, float32 [rows, columns] without NaN, of the token `chosen`, int64 [rows], and of the
    `top` most likely, equal ones by their ids. `weights`: room for as many numbers.
    """
    columns = logits.shape[-1]
    totals = log_totals(logits, logits.amax(dim=-1, keepdim=True), weights)
    of_chosen = (logits.gather(1, chosen[:, None]) - totals)[:, 0].tolist()
    most = min(max(top), columns)
    if not most:
        return [LogProbabilities(logprob, ()) for logprob in of_chosen]
    ids = columns - 1 - (largest(_sort_keys(logits), most) & ((1 << _ID_BITS) - 1))
    of_top = (logits.gather(1, ids) - totals).tolist()
    return [
        LogProbabilities(logprob, tuple(zip(ids_of_row[:count], logprobs[:count], strict=True)))
        for logprob, ids_of_row, logprobs, count in zip(of_chosen, ids.tolist(), of_top, top, strict=True)
    ]


def _sort_keys(logits: torch.Tensor) -> torch.Tensor:
    """int64 [rows, columns], no two of a row alike: in the order of the logits, and of equals the first is greatest.

    The bits of a float are in the order of its values where it is above 0, and in reverse below.
    """
    bits = logits.contiguous().view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    columns = logits.shape[-1]
    return (ordered << _ID_BITS) + torch.arange(columns - 1, -1, -1, device=logits.device)
