"""RMSNorm and rotary position embeddings (RoPE) of a decoder's states, for compiled code."""

import math
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import compiled, llvm_function, pointer_to_floats
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, VECTORS, int64, load

_LANES = VECTORS.lanes
_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def rms_norm(source: int, target: int, weight: int, size: int, epsilon: Any) -> None:
    """Write RMSNorm, x / √(mean(x²) + ε) · weight, of `size` float32 elements."""
    x, out, factors = pointer_to_floats(source), pointer_to_floats(target), pointer_to_floats(weight)
    total = _ZERO
    for position in range(size):
        total += x[position] * x[position]
    scale = _ONE / np.float32(math.sqrt(total / np.float32(size) + epsilon))
    for position in range(size):
        out[position] = x[position] * scale * factors[position]


@compiled
def apply_rope(head: int, cosines: int, sines: int, size: int) -> None:
    """Apply RoPE to a head of `size` float32 elements in place, its halves together (Su et al. 2021). `cosines`,
    `sines`: [size / 2].
    """
    half = size // 2
    whole = half - half % _LANES
    _rope_vectors(head, cosines, sines, half, whole)
    x, cosine, sine = pointer_to_floats(head), pointer_to_floats(cosines), pointer_to_floats(sines)
    for position in range(whole, half):
        first, second = x[position], x[position + half]
        x[position] = first * cosine[position] - second * sine[position]
        x[position + half] = second * cosine[position] + first * sine[position]


@llvm_function
def _rope_vectors(_context: Any, _head: Any, _cosines: Any, _sines: Any, _half: Any, _whole: Any) -> Any:
    """(addresses of a head, cosines and sines; half of its size; elements in whole vectors) → nothing; rotates these.
    LLVM makes scalar code of a loop that overwrites its inputs.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        head, cosines, sines = (builder.inttoptr(each, BYTES) for each in arguments[:3])
        half, whole = arguments[3:]
        other = builder.gep(head, [builder.mul(half, int64(4))])
        with cgutils.for_range_slice(builder, int64(0), whole, int64(VECTORS.lanes)) as (position, _):
            offset = [builder.mul(position, int64(4))]
            own_pointers = [builder.gep(each, offset) for each in (head, other)]
            first, second = (load(builder, each, VECTORS.floats) for each in own_pointers)
            cosine, sine = (load(builder, builder.gep(each, offset), VECTORS.floats) for each in (cosines, sines))
            turned = (
                builder.fsub(builder.fmul(first, cosine), builder.fmul(second, sine)),
                builder.fadd(builder.fmul(second, cosine), builder.fmul(first, sine)),
            )
            for each, pointer in zip(turned, own_pointers, strict=True):
                builder.store(each, builder.bitcast(pointer, VECTORS.floats.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), write
