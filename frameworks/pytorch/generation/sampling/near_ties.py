"""Find rows whose argmax may change with the rounding of their logits."""

from collections.abc import Iterable

import torch

from frameworks.pytorch.generation.sampling.top_k import count_from

# Differences between kernels for different numbers of rows, in ULP of the largest logit.
_ROUNDINGS = {torch.float32: 256, torch.float16: 4, torch.bfloat16: 2}


class TieCheck:
    """The rows of a batch that are checked for near ties. `rows`: the greedy ones."""

    def __init__(self, rows: Iterable[int]) -> None:
        self._rows = list(rows)
        self.found: set[int] = set()
        """The rows whose two largest logits differ by less than the rounding."""

    def find(self, values: torch.Tensor, maxima: torch.Tensor, logits_dtype: torch.dtype) -> None:
        """Fill in `found`. `values`: float32 [all rows, vocabulary]; `maxima`: their maxima, float32 [all rows]."""
        if not self._rows:
            return
        if len(self._rows) < len(values):
            index = torch.tensor(self._rows, device=values.device)
            values, maxima = values.index_select(0, index), maxima.index_select(0, index)
        tolerance = maxima.abs() * (_ROUNDINGS[logits_dtype] * torch.finfo(logits_dtype).eps)
        counts = count_from(values, maxima - tolerance)
        self.found.update(row for row, count in zip(self._rows, counts, strict=True) if count > 1)
