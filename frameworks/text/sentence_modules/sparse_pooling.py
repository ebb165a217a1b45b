"""Read SpladePooling of sentence-transformers: how logits become a weight for each token of the vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules.modules import Module

KIND = "SpladePooling"
_STRATEGIES = ("max", "sum")
_ACTIVATIONS = ("relu", "log1p_relu")


@dataclass(frozen=True, slots=True)
class SparsePooling:
    """`strategy`: over the tokens of a text, max or sum. `logs`: how often log1p follows the relu of a logit."""

    strategy: str
    logs: int


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
