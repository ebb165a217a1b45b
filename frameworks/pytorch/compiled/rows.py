"""Norms and rotations of a decoder's rows, for compiled code."""

import math
from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats
from frameworks.pytorch.compiled.narrow_numbers import store_bfloat16, store_float16

FLOAT32, BFLOAT16, FLOAT16 = range(3)
"""Kinds of the numbers of a cache."""
_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def normalize(source: int, target: int, weight: int, size: int, epsilon: Any) -> None:
    """x / √(mean(x²) + ε) · weight of `size` float32 numbers."""
    x, out, factors = pointer_to_floats(source), pointer_to_floats(target), pointer_to_floats(weight)
    total = _ZERO
    for position in range(size):
        total += x[position] * x[position]
    scale = _ONE / np.float32(math.sqrt(total / np.float32(size) + epsilon))
    for position in range(size):
        out[position] = x[position] * scale * factors[position]


@compiled
def rotate(source: int, target: int, cosines: int, sines: int, size: int) -> None:
    """Rotate a head of `size` numbers, its halves together (Su et al. 2021). `cosines`, `sines`: [size / 2]."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    cosine, sine = pointer_to_floats(cosines), pointer_to_floats(sines)
    half = size // 2
    for position in range(half):
        first, second = x[position], x[position + half]
        out[position] = first * cosine[position] - second * sine[position]
        out[position + half] = second * cosine[position] + first * sine[position]


@compiled
def copy(source: int, target: int, size: int) -> None:
    """Copy `size` float32 numbers."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    for position in range(size):
        out[position] = x[position]


@compiled
def scatter(source: int, target: int, size: int, stride: int, kind: int) -> None:
    """Write `size` float32 numbers to a cache, `stride` numbers from one to the next."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    if kind == FLOAT32:
        for position in range(size):
            out[position * stride] = x[position]
    elif kind == BFLOAT16:
        for position in range(size):
            store_bfloat16(target, position * stride, x[position])
    else:
        for position in range(size):
            store_float16(target, position * stride, x[position])


@compiled
def narrow(source: int, target: int, size: int, kind: int) -> None:
    """Round `size` float32 numbers to those of a cache: kind BFLOAT16 or FLOAT16. In place too, if the target is not
    behind the source.
    """
    x = pointer_to_floats(source)
    if kind == BFLOAT16:
        for position in range(size):
            store_bfloat16(target, position, x[position])
    else:
        for position in range(size):
            store_float16(target, position, x[position])
