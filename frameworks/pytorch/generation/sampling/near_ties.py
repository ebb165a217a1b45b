"""Find greedy choices that another order of the same sums may change."""

from collections.abc import Iterable

import torch

from frameworks.pytorch.generation.sampling.top_k import count_from

# Differences that the kernels of other numbers of rows make, in units of the last place of the largest logit.
_ROUNDINGS = {torch.float32: 256, torch.float16: 4, torch.bfloat16: 2}


class TieCheck:
    """Rows of a batch whose two largest values have to be told apart. `rows`: without those that are drawn."""

    def __init__(self, rows: Iterable[int]) -> None:
        self._rows = list(rows)
        self.found: set[int] = set()
        """The rows whose two largest values are closer than the rounding of the logits."""

    def find(self, values: torch.Tensor, maxima: torch.Tensor, logits_dtype: torch.dtype) -> None:
        """Fill in `found`. `values`: float32 [all rows, vocabulary], with `maxima` [all rows]."""
        if not self._rows:
            return
        if len(self._rows) < len(values):
            index = torch.tensor(self._rows, device=values.device)
            values, maxima = values.index_select(0, index), maxima.index_select(0, index)
        tolerance = maxima.abs() * (_ROUNDINGS[logits_dtype] * torch.finfo(logits_dtype).eps)
        counts = count_from(values, maxima - tolerance)
        self.found.update(row for row, count in zip(self._rows, counts, strict=True) if count > 1)
