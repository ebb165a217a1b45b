"""Compute the modules of sentence-transformers that follow the pooling: Dense, LayerNorm and Normalize.

Source: sentence-transformers 6. All frameworks apply them to the pooled float32 vectors, with numpy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.text.pooling import normalize_rows
from frameworks.text.sentence_modules.module_weights import checked_tensor, read_weights
from frameworks.text.sentence_modules.modules import Module
from frameworks.types import Array

LARGEST_VECTOR = 65_536
_EPSILON = 1e-5
"""Of torch.nn.LayerNorm."""
_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(values: Array) -> Array:
    """As torch.sigmoid; no value overflows."""
    half: Array = 0.5 * (1.0 + np.tanh(0.5 * values))
    return half


def _gelu(values: Array) -> Array:
    weights = np.asarray(_erf(values / math.sqrt(2)), dtype=np.float32)
    return np.asarray(values * 0.5 * (1.0 + weights))


# By the class name within torch.nn, with the class's default arguments: no folder states others.
_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "ELU": lambda values: np.where(values > 0, values, np.expm1(np.minimum(values, 0))),
    "GELU": _gelu,
    "Identity": lambda values: values,
    "LeakyReLU": lambda values: np.where(values > 0, values, values * 0.01),
    "LogSigmoid": lambda values: -np.logaddexp(0, -values),
    "ReLU": lambda values: np.maximum(values, 0),
    "SiLU": lambda values: values * _sigmoid(values),
    "Sigmoid": _sigmoid,
    "Softplus": lambda values: np.logaddexp(0, values),
    "Tanh": np.tanh,
}
_FOLDERS_OF_TORCH = ("torch.nn.modules.activation.", "torch.nn.modules.linear.", "torch.nn.")


@dataclass(frozen=True, slots=True)
class _Dense:
    """`weight`: [in, out], contiguous. `residual`: [in, out]; None: the input itself, where `adds_input`."""

    weight: Array
    bias: Array | None
    activation: Callable[[Array], Array]
    adds_input: bool
    residual: Array | None

    def __call__(self, rows: Array) -> Array:
        product = rows @ self.weight
        result = self.activation(product if self.bias is None else product + self.bias)
        if not self.adds_input:
            return result
        added: Array = result + (rows if self.residual is None else rows @ self.residual)
        return added


@dataclass(frozen=True, slots=True)
class _LayerNorm:
    weight: Array
    bias: Array

    def __call__(self, rows: Array) -> Array:
        centered = rows - rows.mean(axis=1, keepdims=True)
        variance = np.square(centered).mean(axis=1, keepdims=True)
        result: Array = centered / np.sqrt(variance + _EPSILON) * self.weight + self.bias
        return result


class VectorModules:
    """The modules of a model after its pooling. `size`: of the vectors that they return. Any thread may call it."""

    def __init__(self, modules: Sequence[Module], size: int, allow_pickled: bool = False) -> None:
        """`size`: of the pooled vectors; 0 or less where only the modules state it. `allow_pickled`: read weights from
        pickles. Raises InvalidModel.
        """
        self.size = size
        self.memory_bytes = 0
        self._steps: list[Callable[[Array], Array]] = []
        for module in modules:
            self._steps.append(self._step(module, allow_pickled))

    def __call__(self, rows: Array) -> Array:
        """Return float32 vectors [texts, self.size] of pooled ones [texts, size]."""
        for step in self._steps:
            rows = step(rows)
        return np.ascontiguousarray(rows, dtype=np.float32)

    def _step(self, module: Module, allow_pickled: bool) -> Callable[[Array], Array]:
        if module.kind == "Normalize":
            return normalize_rows
        tensors = read_weights(module, allow_pickled)
        self.memory_bytes += sum(tensor.nbytes for tensor in tensors.values())
        if module.kind == "LayerNorm":
            self._check_size(module, "dimension")
            weight, bias = (
                checked_tensor(module, tensors, f"norm.{name}", (self.size,)) for name in ("weight", "bias")
            )
            return _LayerNorm(weight, bias)
        assert module.kind == "Dense", module.kind
        return self._dense(module, tensors)

    def _dense(self, module: Module, tensors: Mapping[str, Array]) -> _Dense:
        self._check_size(module, "in_features")
        before, after = self.size, module.count("out_features", LARGEST_VECTOR)
        self.size = after
        shape = (after, before)
        adds_input = module.config.get("use_residual") is True
        is_projected = adds_input and after != before
        has_bias = module.config.get("bias") is not False
        return _Dense(
            weight=_transposed(checked_tensor(module, tensors, "linear.weight", shape)),
            bias=checked_tensor(module, tensors, "linear.bias", (after,)) if has_bias else None,
            activation=_ACTIVATIONS[activation_name(module)],
            adds_input=adds_input,
            residual=_transposed(checked_tensor(module, tensors, "residual.weight", shape)) if is_projected else None,
        )

    def _check_size(self, module: Module, key: str) -> None:
        size, stated = self.size, module.config.get(key)
        if size <= 0 and isinstance(stated, int) and 0 < stated <= LARGEST_VECTOR:
            self.size = stated
        elif stated != size:
            raise InvalidModel(
                f"{module.config_file}: {key}: expected {size}, the size of the vectors before it, "
                f"got {str(stated)[:100]}; correct the file"
            )


def activation_name(module: Module) -> str:
    """Return the class of torch.nn that is the activation of a Dense module.

    Raises InvalidModel for one that is code of its own, or not served.
    """
    name = module.config.get("activation_function", "torch.nn.modules.activation.Tanh")
    for prefix in _FOLDERS_OF_TORCH:
        if isinstance(name, str) and name.startswith(prefix) and name.removeprefix(prefix) in _ACTIVATIONS:
            return name.removeprefix(prefix)
    raise InvalidModel(
        f"{module.config_file}: activation_function: expected one of torch.nn's {', '.join(_ACTIVATIONS)}, "
        f"got {str(name)[:100]}; this setting is not served"
    )


def _transposed(weight: Array) -> Array:
    return np.ascontiguousarray(weight.T)
