"""Sparse vectors without logits: a weight for each token of a text, or the highest values of a projection."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.pytorch.encoders.sparse import SparseModel
from frameworks.text.config import TextConfig
from frameworks.text.sentence_modules.modules import Module
from frameworks.text.sentence_modules.sparse_modules import SparseCode, keep_largest, read_token_weights
from frameworks.types import Array, ModelSpec, TensorType, TokenBatch, ValueSpec


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
    """Return the spec of a model with a sparse module, and what makes an instance of it, as EncoderModel.

    `spec`: of its dense vectors. Raises InvalidModel.
    """
    text = spec.text
    assert config.sparse_module is not None
    assert text is not None
    make: Callable[..., EncoderModel]
    if isinstance(model, TokenWeights):
        size, memory_bytes = len(model.weights), model.weights.nbytes
        make = partial(_token_weight_model, config.max_active_dims)
    else:
        size = text.embedding_size or 0
        code = SparseCode(config.sparse_module, size, config.max_active_dims, allow_pickled)
        size, memory_bytes = code.size, code.memory_bytes
        make = partial(_sparse_code_model, code)
    spec = replace(
        spec,
        outputs=(ValueSpec("sparse_embeddings", TensorType("float32", (-1, size))),),
        memory_bytes=spec.memory_bytes + memory_bytes,
        text=replace(text, vectors="sparse", embedding_size=size, shorter_sizes=(), normalize=False),
    )
    return spec, make


def _token_weight_model(max_active_dims: int | None, *arguments: Any) -> EncoderModel:
    instance = TokenWeightModel(*arguments)
    instance.max_active_dims = max_active_dims
    return instance


def _sparse_code_model(code: SparseCode, *arguments: Any) -> EncoderModel:
    instance = SparseCodeModel(*arguments)
    instance.code = code
    return instance
