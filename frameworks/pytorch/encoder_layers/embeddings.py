"""The embeddings of an encoder, for compiled code."""

from typing import Any

import numpy as np
import torch

from frameworks.types import Array


class Embeddings:
    """Tables in float32, of BERT's form: words, positions, perhaps types, and a norm of their sum."""

    def __init__(self, module: Any) -> None:
        """Raises AttributeError for another form, and ValueError for another dtype."""
        tables = [module.word_embeddings, module.position_embeddings, getattr(module, "token_type_embeddings", None)]
        norm = module.LayerNorm
        self._held = [None if each is None else each.weight for each in (*tables, norm)]
        if any(each is not None and (each.dtype != torch.float32 or not each.is_contiguous()) for each in self._held):
            raise ValueError("the tables are not float32")
        addresses = [0 if each is None else each.data_ptr() for each in (*self._held, norm.bias)]
        self._held.append(norm.bias)
        self.addresses = np.array(addresses, dtype=np.int64)
        self.epsilon = float(norm.eps)
        self._rows = np.array([[1 << 31 if each is None else each.num_embeddings] for each in tables])

    def rows_of(self, values: torch.Tensor) -> Array | None:
        """Return the rows of the tables, int64 [3, tokens], of ids, positions and types; None if there is none for one
        of them.
        """
        found: Array = values.numpy().astype(np.int64)
        return None if (found >= self._rows).any() or found.min(initial=0) < 0 else found
