"""Compute the modules of sentence-transformers whose vectors are sparse: SparseStaticEmbedding and SparseAutoEncoder.

Source: sentence-transformers 6. A sparse vector is its int32 indices, ascending, and its float32 values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules.module_weights import checked_tensor, read_weights
from frameworks.text.sentence_modules.modules import Module
from frameworks.text.sentence_modules.vector_modules import LARGEST_VECTOR
from frameworks.types import Array

_EPSILON = 1e-5
_MOST_DIMENSIONS = 10_000_000
_TIED = ("encoder.weight", "decoder.linear.weight")


def read_max_active_dims(file: Path, stated: Mapping[str, Any]) -> int | None:
    """Return how many values of a sparse vector are kept; None for all. `stated`: of the model's file.

    Raises InvalidModel.
    """
    value = stated.get("max_active_dims")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31):
        raise InvalidModel(f"{file}: max_active_dims: expected 1 or more, got {str(value)[:100]}; correct it")
    return value


def keep_largest(indices: Array, values: Array, count: int | None) -> tuple[Array, Array]:
    """Return the `count` elements whose values are the largest without their signs; all of them for None."""
    if count is None or len(values) <= count:
        return indices, values
    kept = np.sort(np.argpartition(-np.abs(values), count - 1)[:count])
    return indices[kept], values[kept]


def sparse_rows(weights: Array, count: int | None) -> Array:
    """Return an object array [texts] of (indices, values) for float32 [texts, size]. `count`: as of `keep_largest`."""
    rows = np.empty(len(weights), object)
    for row, own in enumerate(weights):
        indices = np.flatnonzero(own).astype(np.int32)
        rows[row] = keep_largest(indices, own[indices], count)
    return rows


def dense_rows(rows: Array, size: int) -> Array:
    """Return float32 [texts, size] for an object array [texts] of (indices, values)."""
    dense = np.zeros((len(rows), size), np.float32)
    for row, (indices, values) in enumerate(rows):
        dense[row, indices] = values
    return dense


def read_token_weights(module: Module, vocabulary_size: int, allow_pickled: bool) -> Array:
    """Return the weight of each token of SparseStaticEmbedding, float32 [tokens]. Raises InvalidModel."""
    weights = read_weights(module, allow_pickled).get("weight")
    shape = (0,) if weights is None else weights.shape
    if weights is None or len(shape) != 1 or not vocabulary_size <= shape[0] <= _MOST_DIMENSIONS:
        got = "none" if weights is None else str([*shape])
        raise InvalidModel(
            f"{module.folder}: weight: expected one for each of {vocabulary_size} tokens, got {got}; "
            "check that the copy is complete"
        )
    return weights


class SparseCode:
    """SparseAutoEncoder: the highest values of a projection of dense vectors. `size`: of the sparse vectors."""

    def __init__(self, module: Module, size: int, max_active_dims: int | None, allow_pickled: bool = False) -> None:
        """`size`: of the dense vectors. `max_active_dims`: of the model's file. Raises InvalidModel."""
        stated = module.count("input_dim", LARGEST_VECTOR)
        if size > 0 and stated != size:
            raise InvalidModel(
                f"{module.config_file}: input_dim: expected {size}, the size of the vectors before it, got {stated}; "
                "correct the file"
            )
        self.size = module.count("hidden_dim", LARGEST_VECTOR, 512)
        self._count = module.count("k", self.size, 8) if max_active_dims is None else max_active_dims
        if self._count > self.size:
            raise InvalidModel(
                f"{module.config_file}: hidden_dim: expected max_active_dims = {self._count} or more, got {self.size}; "
                "correct the files"
            )
        self._normalizes = module.config.get("normalize") is True
        tensors = read_weights(module, allow_pickled)
        # One tensor under two names: the file has either.
        name = next((each for each in _TIED if each in tensors), _TIED[0])
        self._weight = np.ascontiguousarray(checked_tensor(module, tensors, name, (self.size, stated)).T)
        self._bias = checked_tensor(module, tensors, "latent_bias", (self.size,))
        self._center = checked_tensor(module, tensors, "pre_bias", (stated,))
        self.memory_bytes = self._weight.nbytes + self._bias.nbytes + self._center.nbytes

    def __call__(self, vectors: Array) -> Array:
        """Return an object array [texts] of (indices, values) for float32 vectors [texts, size]."""
        if self._normalizes:
            vectors = vectors - vectors.mean(axis=1, keepdims=True)
            vectors = vectors / (vectors.std(axis=1, ddof=1, keepdims=True) + _EPSILON)
        rows = np.empty(len(vectors), object)
        for row, latents in enumerate((vectors - self._center) @ self._weight + self._bias):
            highest = np.sort(np.argpartition(-latents, self._count - 1)[: self._count])
            indices = highest[latents[highest] > 0].astype(np.int32)
            rows[row] = (indices, latents[indices].astype(np.float32))
        return rows
