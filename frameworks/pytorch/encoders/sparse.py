"""Sparse vectors: of logits of the vocabulary, of a weight for each token, or the highest values of a projection."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.config import TextConfig
from frameworks.text.sentence_modules.modules import Module
from frameworks.text.sentence_modules.sparse_modules import (
    SparseCode,
    dense_rows,
    keep_largest,
    read_token_weights,
    sparse_rows,
)
from frameworks.text.sentence_modules.sparse_pooling import SparsePooling, most_texts
from frameworks.types import Array, ModelSpec, TensorType, TokenBatch, ValueSpec


class SparseModel(EncoderModel):
    """Its rows are object arrays [texts] of (int32 indices, float32 values), by ascending index."""

    sparse: SparsePooling
    max_active_dims: int | None = None

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        """Run a batch in parts whose logits have a bound: each token has one for the whole vocabulary."""
        assert self.spec.embedding_size is not None
        rows = most_texts(max(map(len, batch.token_ids), default=1), self.spec.embedding_size)
        if rows >= batch.rows:
            return self._run_part(model, batch)
        parts = [self._run_part(model, batch.part(at, rows)) for at in range(0, batch.rows, rows)]
        return np.concatenate(parts)

    def _run_part(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        return sparse_rows(super()._run(model, batch), self.max_active_dims)

    def _trial_row(self, rows: Array) -> Array:
        assert self.spec.embedding_size is not None
        return dense_rows(rows, self.spec.embedding_size)

    def _rows(self, output: Any, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = output.logits
        weights = (logits * mask.unsqueeze(-1).to(logits.dtype)).relu_()
        is_max = self.sparse.strategy == "max"
        # log1p rises with its argument: the logarithm of the largest is the largest logarithm.
        pooled = weights.amax(dim=1) if is_max else weights
        for _ in range(self.sparse.logs):
            pooled = pooled.log1p()
        return pooled if is_max else pooled.sum(dim=1)


class TokenWeights(torch.nn.Module):
    """SparseStaticEmbedding: the weight of each token that a text has. No transformer runs."""

    def __init__(self, weights: Array) -> None:
        """`weights`: float32 [tokens]."""
        super().__init__()
        self.weights = weights
        self.config: Any = SimpleNamespace(hidden_size=len(weights))

    def forward(self, token_ids: list[int]) -> tuple[Array, Array]:
        """Return the indices and values of a text."""
        indices = np.unique(np.asarray(token_ids, np.int32))
        indices = indices[self.weights[indices] != 0]
        return indices, self.weights[indices]


class TokenWeightModel(SparseModel):
    """Its rows do not depend on the texts beside them: all texts share a batch."""

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        rows = np.empty(batch.rows, object)
        for row, ids in enumerate(batch.token_ids):
            indices, values = model(ids)
            rows[row] = keep_largest(indices, values, self.max_active_dims)
        return rows


class SparseCodeModel(SparseModel):
    """An encoder with SparseAutoEncoder after its pooling."""

    code: SparseCode

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        return self.code(EncoderModel._run(self, model, batch))

    def _rows(self, output: Any, mask: torch.Tensor) -> torch.Tensor:
        return EncoderModel._rows(self, output, mask)


def load_token_weights(module: Module, vocabulary_size: int, allow_pickled: bool) -> torch.nn.Module:
    """Return the weights of the tokens. `vocabulary_size`: of the tokenizer. Raises InvalidModel."""
    return TokenWeights(read_token_weights(module, vocabulary_size, allow_pickled)).eval()


def with_sparse_module(
    model: torch.nn.Module, spec: ModelSpec, config: TextConfig, allow_pickled: bool
) -> tuple[ModelSpec, Callable[..., EncoderModel]]:
    """Return the spec of a model of sparse vectors, and what makes an instance of it, as EncoderModel.

    `spec`: of its dense vectors. Raises InvalidModel.
    """
    text = spec.text
    assert text is not None
    make: Callable[..., EncoderModel]
    memory_bytes = 0
    if config.sparse is not None:
        stated: Any = model.config
        size = int(stated.vocab_size)
        make = partial(_splade_model, config.sparse, config.max_active_dims)
    elif isinstance(model, TokenWeights):
        size, memory_bytes = len(model.weights), model.weights.nbytes
        make = partial(_token_weight_model, config.max_active_dims)
    else:
        assert config.sparse_module is not None
        size = text.embedding_size or 0
        code = SparseCode(config.sparse_module, size, config.max_active_dims, allow_pickled)
        size, memory_bytes = code.size, code.memory_bytes
        make = partial(_sparse_code_model, code)
    pooling = text.pooling if config.sparse is None else "none"
    spec = replace(
        spec,
        outputs=(ValueSpec("sparse_embeddings", TensorType("float32", (-1, size))),),
        memory_bytes=spec.memory_bytes + memory_bytes,
        text=replace(text, vectors="sparse", embedding_size=size, shorter_sizes=(), pooling=pooling, normalize=False),
    )
    return spec, make


def _splade_model(sparse: SparsePooling, max_active_dims: int | None, *arguments: Any) -> EncoderModel:
    instance = SparseModel(*arguments)
    instance.sparse, instance.max_active_dims = sparse, max_active_dims
    return instance


def _token_weight_model(max_active_dims: int | None, *arguments: Any) -> EncoderModel:
    instance = TokenWeightModel(*arguments)
    instance.max_active_dims = max_active_dims
    return instance


def _sparse_code_model(code: SparseCode, *arguments: Any) -> EncoderModel:
    instance = SparseCodeModel(*arguments)
    instance.code = code
    return instance
