"""Layer normalization of a row, for compiled code."""

import math

import numpy as np

from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats

_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def layer_norm(source: int, target: int, weights: tuple[int, int], size: int, epsilon: float) -> None:
    """Write LayerNorm, (x - mean(x)) / √(variance(x) + ε) · weight + bias, of `size` float32 elements; in place too.

    `weights`: addresses of weight and bias, the latter 0 without.
    """
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    factors = pointer_to_floats(weights[0])
    total = _ZERO
    for position in range(size):
        total += x[position]
    mean = total / np.float32(size)
    total = _ZERO
    for position in range(size):
        difference = x[position] - mean
        total += difference * difference
    scale = _ONE / np.float32(math.sqrt(total / np.float32(size) + epsilon))
    if weights[1]:
        summands = pointer_to_floats(weights[1])
        for position in range(size):
            out[position] = (x[position] - mean) * scale * factors[position] + summands[position]
    else:
        for position in range(size):
            out[position] = (x[position] - mean) * scale * factors[position]
