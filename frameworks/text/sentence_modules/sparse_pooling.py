"""SpladePooling of sentence-transformers: logits become a weight for each token of the vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules.modules import Module
from frameworks.types import Array

KIND = "SpladePooling"
_STRATEGIES = ("max", "sum")
_ACTIVATIONS = ("relu", "log1p_relu")
_MAX_LOGITS = 64 * 1024**2
"""Of one run, in numbers: 256 MiB in float32."""


@dataclass(frozen=True, slots=True)
class SparsePooling:
    """`strategy`: over the tokens of a text, max or sum. `logs`: how often log1p follows the relu of a logit."""

    strategy: str
    logs: int

    def weights_of(self, logits: Array, mask: Array) -> Array:
        """Return float32 [texts, vocabulary] of logits [texts, tokens, vocabulary]. `mask`: [texts, tokens]."""
        weights = np.zeros((len(logits), logits.shape[-1]), np.float32)
        for row, (states, pooled) in enumerate(zip(logits, mask, strict=True)):
            if not pooled.any():
                continue
            found = states[pooled != 0].astype(np.float32)
            # log1p rises with its argument: the logarithm of the largest is the largest logarithm.
            found = np.maximum(found.max(axis=0) if self.strategy == "max" else found, 0)
            for _ in range(self.logs):
                found = np.log1p(found)
            weights[row] = found if self.strategy == "max" else found.sum(axis=0)
        return weights


def most_texts(longest: int, vocabulary_size: int) -> int:
    """Return how many texts of `longest` tokens run at once: each token has a logit for the whole vocabulary."""
    return max(1, _MAX_LOGITS // (max(1, longest) * vocabulary_size))


def read_sparse_pooling(
    folder: Path, modules: Sequence[Module], sentence: Mapping[str, object]
) -> SparsePooling | None:
    """Return the pooling of a sparse model; None for other models. `sentence`: of the first module.

    Raises InvalidModel for modules and settings that are not served.
    """
    kinds = [module.kind for module in modules]
    if KIND not in kinds:
        return None
    is_masked = kinds[0] == "MLMTransformer" or sentence.get("transformer_task") == "fill-mask"
    if kinds[1:] != [KIND] or not is_masked:
        raise InvalidModel(
            f"{folder / 'modules.json'}: expected a masked language model, then SpladePooling, "
            f"got {', '.join(kinds)[:200]}; this order is not served"
        )
    module = modules[1]
    strategy = _choice(module, "pooling_strategy", _STRATEGIES)
    return SparsePooling(strategy, 1 + _ACTIVATIONS.index(_choice(module, "activation_function", _ACTIVATIONS)))


def _choice(module: Module, key: str, served: tuple[str, ...]) -> str:
    """Return a setting; the first of `served` is sentence-transformers' default."""
    value = module.config.get(key, served[0])
    if value not in served:
        raise InvalidModel(
            f"{module.config_file}: {key}: expected {' or '.join(served)}, got {str(value)[:100]}; correct the file"
        )
    return str(value)
