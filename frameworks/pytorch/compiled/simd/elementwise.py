"""Elementwise functions of float32 vectors, in LLVM's language: exp, activation functions, fused multiply-add.

LLVM makes scalar code of a short loop: it unrolls the loop before it looks for vectors. Calls of libm stay scalar too.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from frameworks.pytorch.compiled.simd.llvm_vectors import VECTORS, function

NONE, SILU, MUL, ADD, GELU, GELU_TANH, QUICK_GELU, RELU = range(8)
"""Operations of an epilogue. MUL and ADD have another operand."""

_LANES = VECTORS.lanes
_WIDE_LANES = 16
_FLOATS, _INTEGERS = VECTORS.floats, VECTORS.integers(32)
_LOG2_E = 1.442695040888963
# ln 2 as a sum, so that a multiple of it is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LOWEST_EXPONENT, _HIGHEST_EXPONENT = -87.0, 87.0
_BIAS, _MANTISSA_BITS = 127, 23
_SQRT_HALF, _SQRT_2_OF_PI, _CUBIC, _QUICK = 0.7071067811865476, 0.7978845608028654, 0.044715, 1.702
# 1 - erf(z) = polynomial(t) · exp(-z²), where t = 1 / (1 + _ERF_SCALE · z): 7.1.26 of Abramowitz and Stegun (1964).
_ERF_SCALE, _ERF = 0.3275911, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
# There the other tail is 0 in float32, and infinities must not become NaN.
_LARGEST_OF_GELU = 30.0
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


def activation(builder: Any, operation: int, x: Any) -> Any:
    """Return the activation function that is this operation, of x; x itself for operations that are none."""
    return _ACTIVATIONS[operation](builder, x) if operation in _ACTIVATIONS else x


def silu(builder: Any, x: Any) -> Any:
    """Return SiLU, x / (1 + exp(-x))."""
    return _times_sigmoid(builder, x, x)


def _times_sigmoid(builder: Any, x: Any, exponent: Any) -> Any:
    """Return x / (1 + exp(-exponent))."""
    return _divide(builder, x, builder.fadd(exponential(builder, builder.fneg(exponent)), all_lanes(1.0)))


def _gelu(builder: Any, x: Any) -> Any:
    """Return GELU, x / 2 · (1 + erf(x / √2)), within 2e-7 · |x|.

    For negative x that is the tail x / 2 · (1 - erf(|x| / √2)) alone, and for others x less this tail.
    """
    size = _smaller(builder, _magnitude(builder, x), all_lanes(_LARGEST_OF_GELU))
    z = builder.fmul(size, all_lanes(_SQRT_HALF))
    t = _divide(builder, all_lanes(1.0), multiply_add(builder, z, all_lanes(_ERF_SCALE), all_lanes(1.0)))
    found = all_lanes(_ERF[0])
    for factor in _ERF[1:]:
        found = multiply_add(builder, found, t, all_lanes(factor))
    found = builder.fmul(found, t)
    power = exponential(builder, builder.fneg(builder.fmul(z, z)))
    tail = builder.fmul(builder.fmul(found, power), builder.fmul(size, all_lanes(0.5)))
    return builder.fsub(_relu(builder, x), tail)


def _gelu_tanh(builder: Any, x: Any) -> Any:
    """Return GELU by tanh, x / 2 · (1 + tanh(u)) = x / (1 + exp(-2 u)), where u = √(2 / π) · (x + 0.044715 x³)."""
    cubic = multiply_add(builder, builder.fmul(x, x), all_lanes(_CUBIC), all_lanes(1.0))
    return _times_sigmoid(builder, x, builder.fmul(builder.fmul(x, all_lanes(2 * _SQRT_2_OF_PI)), cubic))


def _quick_gelu(builder: Any, x: Any) -> Any:
    """Return CLIP's GELU, x / (1 + exp(-1.702 x))."""
    return _times_sigmoid(builder, x, builder.fmul(x, all_lanes(_QUICK)))


def _relu(builder: Any, x: Any) -> Any:
    """Return the larger of x and 0. NaN stays NaN."""
    zero = all_lanes(0.0)
    return builder.select(builder.fcmp_unordered(">", x, zero), x, zero)


def _magnitude(builder: Any, x: Any) -> Any:
    """Return |x|."""
    return builder.call(function(builder, f"llvm.fabs.v{_LANES}f32", _FLOATS, [_FLOATS]), [x])


def _smaller(builder: Any, x: Any, limit: Any) -> Any:
    """Return the smaller of x and a limit. NaN stays NaN."""
    return builder.select(builder.fcmp_ordered(">", x, limit), limit, x)


_ACTIVATIONS: dict[int, Callable[[Any, Any], Any]] = {
    SILU: silu,
    GELU: _gelu,
    GELU_TANH: _gelu_tanh,
    QUICK_GELU: _quick_gelu,
    RELU: _relu,
}
OPERATIONS = (NONE, MUL, ADD, *_ACTIVATIONS)


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
