"""Log probabilities of the model's own logits, the same to the bit whatever rows stand beside a row."""

from typing import NamedTuple

import torch

from frameworks.pytorch.generation.drawing import SamplingWorkspace, log_totals
from frameworks.pytorch.generation.searches import largest_places


class LogProbabilities(NamedTuple):
    """`logprob` of the chosen token, and the most likely: (token id, log probability), by falling probability."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def log_probabilities(
    logits: torch.Tensor, chosen: torch.Tensor, top: list[int], room: SamplingWorkspace
) -> list[LogProbabilities]:
    """For each row of `logits`, float32 [rows, columns] without NaN, of the token `chosen`, int64 [rows], and of the
    `top` most likely, equal ones by their ids.
    """
    totals = log_totals(logits, logits.amax(dim=-1, keepdim=True), room)
    of_chosen = (logits.gather(1, chosen[:, None]) - totals)[:, 0].tolist()
    most = min(max(top), logits.shape[-1])
    if not most:
        return [LogProbabilities(logprob, ()) for logprob in of_chosen]
    ids = largest_places(logits, most)
    of_top = (logits.gather(1, ids) - totals).tolist()
    return [
        LogProbabilities(logprob, tuple(zip(ids_of_row[:count], logprobs[:count], strict=True)))
        for logprob, ids_of_row, logprobs, count in zip(of_chosen, ids.tolist(), of_top, top, strict=True)
    ]
