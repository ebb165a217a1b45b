"""A masked language model with SpladePooling: texts in, weights of the tokens of the vocabulary out."""

from typing import Any

import numpy as np
import torch

from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.padding import pad
from frameworks.text.sentence_modules.sparse_modules import keep_largest
from frameworks.text.sentence_modules.sparse_pooling import SparsePooling
from frameworks.types import Array, TokenBatch

_MAX_LOGITS = 64 * 1024**2
"""Of one run, in numbers: 256 MiB in float32."""


class SparseModel(EncoderModel):
    """Its rows are object arrays [texts] of (int32 indices, float32 values), by ascending index."""

    sparse: SparsePooling
    max_active_dims: int | None = None

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        """Run a batch in parts whose logits have a bound: each token has one for the whole vocabulary."""
        assert self.spec.embedding_size is not None
        longest = max(1, *map(len, batch.token_ids)) if batch.rows else 1
        rows = max(1, _MAX_LOGITS // (longest * self.spec.embedding_size))
        if rows >= batch.rows:
            return self._run_part(model, batch)
        parts = [self._run_part(model, batch.part(at, rows)) for at in range(0, batch.rows, rows)]
        return np.concatenate(parts)

    def _run_part(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        types = batch.token_type_ids if self._reads_token_types else None
        tokens = pad(batch.token_ids, self._padding.pad_token_id or 0, token_type_ids=types)
        rows = np.empty(batch.rows, object)
        for row, weights in enumerate(self._computed(model, tokens)):
            indices = np.flatnonzero(weights).astype(np.int32)
            rows[row] = keep_largest(indices, weights[indices], self.max_active_dims)
        return rows

    def _trial_row(self, rows: Array) -> Array:
        assert self.spec.embedding_size is not None
        dense = np.zeros((len(rows), self.spec.embedding_size), np.float32)
        for row, (indices, values) in enumerate(rows):
            dense[row, indices] = values
        return dense

    def _rows(self, output: Any, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = output.logits
        weights = (logits * mask.unsqueeze(-1).to(logits.dtype)).relu_()
        is_max = self.sparse.strategy == "max"
        # log1p rises with its argument: the logarithm of the largest is the largest logarithm.
        pooled = weights.amax(dim=1) if is_max else weights
        for _ in range(self.sparse.logs):
            pooled = pooled.log1p()
        return pooled if is_max else pooled.sum(dim=1)
