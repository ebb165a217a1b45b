"""Layer normalization of a row, for compiled code."""

import math
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import compiled, llvm_function, pointer_to_floats
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, VECTORS, int64, load, splat

_LANES = VECTORS.lanes
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
    whole = size - size % _LANES
    _normalize_vectors(source, target, weights[0], weights[1], mean, scale, whole)
    for position in range(whole, size):
        found = (x[position] - mean) * scale * factors[position]
        if weights[1]:
            found += pointer_to_floats(weights[1])[position]
        out[position] = found


@llvm_function
def _normalize_vectors(
    _context: Any, _source: Any, _target: Any, _weight: Any, _bias: Any, _mean: Any, _scale: Any, _whole: Any
) -> Any:
    """(addresses of the row, the target, weight and bias, the latter 0 without; mean, scale; elements in whole vectors)
    → nothing; writes these. LLVM makes scalar code of a loop that overwrites its inputs.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target, weight, bias = (builder.inttoptr(each, BYTES) for each in arguments[:4])
        mean, scale = (splat(builder, each, _LANES) for each in arguments[4:6])
        kind = VECTORS.floats
        for has_bias, test in ((True, "!="), (False, "==")):
            with (
                builder.if_then(builder.icmp_signed(test, arguments[3], int64(0))),
                cgutils.for_range_slice(builder, int64(0), arguments[6], int64(_LANES)) as (position, _),
            ):
                offset = [builder.mul(position, int64(4))]
                own = builder.fsub(load(builder, builder.gep(source, offset), kind), mean)
                own = builder.fmul(builder.fmul(own, scale), load(builder, builder.gep(weight, offset), kind))
                if has_bias:
                    own = builder.fadd(own, load(builder, builder.gep(bias, offset), kind))
                builder.store(own, builder.bitcast(builder.gep(target, offset), kind.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32, types.float32, types.int64), write
