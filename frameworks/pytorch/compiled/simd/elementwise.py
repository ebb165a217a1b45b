"""Elementwise functions of float32 vectors, in LLVM's language: exp, SiLU, fused multiply-add.

LLVM makes scalar code of a short loop: it unrolls the loop before it looks for vectors. Calls of libm stay scalar too.
"""

from typing import Any

from llvmlite import ir

from frameworks.pytorch.compiled.simd.llvm_vectors import VECTORS, function

NONE, SILU, MUL, ADD = range(4)
"""Operations of an epilogue."""

_LANES = VECTORS.lanes
_WIDE_LANES = 16
_FLOATS, _INTEGERS = VECTORS.floats, VECTORS.integers(32)
_LOG2_E = 1.442695040888963
# ln 2 as a sum, so that a multiple of it is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LOWEST_EXPONENT, _HIGHEST_EXPONENT = -87.0, 87.0
_BIAS, _MANTISSA_BITS = 127, 23
_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)


def all_lanes(value: float) -> Any:
    """Return a float32 vector of this value."""
    return ir.Constant(_FLOATS, [value] * _LANES)


def multiply_add(builder: Any, first: Any, second: Any, summand: Any) -> Any:
    """Return first * second + summand, rounded once (FMA)."""
    kind = f"llvm.fma.v{_LANES}f32"
    return builder.call(function(builder, kind, _FLOATS, [_FLOATS] * 3), [first, second, summand])


def exponential(builder: Any, x: Any) -> Any:
    """Return exp(x) within 2 ULP; x is clamped to where float32 holds it. NaN stays NaN.

    The polynomial of Cephes (Moshier, 1989).
    """
    lowest, highest = all_lanes(_LOWEST_EXPONENT), all_lanes(_HIGHEST_EXPONENT)
    bounded = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    bounded = builder.select(builder.fcmp_ordered(">", bounded, highest), highest, bounded)
    scaled = multiply_add(builder, bounded, all_lanes(_LOG2_E), all_lanes(0.5))
    whole = builder.call(function(builder, f"llvm.floor.v{_LANES}f32", _FLOATS, [_FLOATS]), [scaled])
    rest = multiply_add(builder, whole, all_lanes(-_LN2_HIGH), bounded)
    rest = multiply_add(builder, whole, all_lanes(-_LN2_LOW), rest)
    powers = all_lanes(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        powers = multiply_add(builder, powers, rest, all_lanes(factor))
    found = multiply_add(builder, powers, builder.fmul(rest, rest), builder.fadd(rest, all_lanes(1.0)))
    exponent = builder.add(builder.fptosi(whole, _INTEGERS), ir.Constant(_INTEGERS, [_BIAS] * _LANES))
    power = builder.shl(exponent, ir.Constant(_INTEGERS, [_MANTISSA_BITS] * _LANES))
    return builder.fmul(found, builder.bitcast(power, _FLOATS))


def silu(builder: Any, x: Any) -> Any:
    """Return SiLU, x / (1 + exp(-x))."""
    return _divide(builder, x, builder.fadd(exponential(builder, builder.fneg(x)), all_lanes(1.0)))


def _divide(builder: Any, x: Any, divisor: Any) -> Any:
    """Return x / divisor, where the divisor is at least 1 and its inverse is normal.

    A division of 512 bits takes as long as a whole exponential. One step of Newton's method makes the CPU's estimate,
    of 14 bits, as exact as a float32 within 2 ULP.
    """
    if _LANES != _WIDE_LANES:
        return builder.fdiv(x, divisor)
    mask, inverse = ir.IntType(16), "llvm.x86.avx512.rcp14.ps.512"
    estimate = builder.call(
        function(builder, inverse, _FLOATS, [_FLOATS, _FLOATS, mask]), [divisor, all_lanes(0.0), ir.Constant(mask, -1)]
    )
    error = multiply_add(builder, builder.fneg(divisor), estimate, all_lanes(1.0))
    return builder.fmul(x, multiply_add(builder, estimate, error, estimate))
