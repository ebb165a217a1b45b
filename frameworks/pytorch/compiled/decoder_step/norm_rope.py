"""RMSNorm and rotary position embeddings (RoPE) of a decoder's states, for compiled code."""

import math
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import compiled, llvm_function, pointer_to_floats
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, VECTORS, load, number

_LANES = VECTORS.lanes
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
def rotate(head: int, cosines: int, sines: int, size: int) -> None:
    """Rotate a head of `size` numbers, its halves together (Su et al. 2021). `cosines`, `sines`: [size / 2]."""
    half = size // 2
    whole = half - half % _LANES
    _rotate_vectors(head, cosines, sines, half, whole)
    x, cosine, sine = pointer_to_floats(head), pointer_to_floats(cosines), pointer_to_floats(sines)
    for position in range(whole, half):
        first, second = x[position], x[position + half]
        x[position] = first * cosine[position] - second * sine[position]
        x[position + half] = second * cosine[position] + first * sine[position]


@llvm_function
def _rotate_vectors(_context: Any, _head: Any, _cosines: Any, _sines: Any, _half: Any, _whole: Any) -> Any:
    """(addresses of a head, cosines and sines; half of its size; numbers in whole vectors) → nothing, after rotating
    these. LLVM makes scalar code of a loop whose results take the place of what it reads.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        head, cosines, sines = (builder.inttoptr(each, BYTES) for each in arguments[:3])
        half, whole = arguments[3:]
        other = builder.gep(head, [builder.mul(half, number(4))])
        with cgutils.for_range_slice(builder, number(0), whole, number(VECTORS.lanes)) as (position, _):
            offset = [builder.mul(position, number(4))]
            own_places = [builder.gep(each, offset) for each in (head, other)]
            first, second = (load(builder, each, VECTORS.floats) for each in own_places)
            cosine, sine = (load(builder, builder.gep(each, offset), VECTORS.floats) for each in (cosines, sines))
            turned = (
                builder.fsub(builder.fmul(first, cosine), builder.fmul(second, sine)),
                builder.fadd(builder.fmul(second, cosine), builder.fmul(first, sine)),
            )
            for each, place in zip(turned, own_places, strict=True):
                builder.store(each, builder.bitcast(place, VECTORS.floats.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), write
