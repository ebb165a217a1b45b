"""Functions of single numbers for compiled code. Loops of them become vectors, which calls of libm do not."""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import float_of_bits, inlined

NONE, SILU, MUL, ADD = range(4)
"""Operations after a product."""

_LOG2_E = np.float32(1.442695040888963)
# ln 2 as a sum, so that a multiple of it is exact.
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_MAX_EXPONENT, _MIN_EXPONENT = np.float32(88.0), np.float32(-87.0)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1)
_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


@inlined
def exponential(x: Any) -> Any:
    """e to the x in float32, within 2 units in the last place; x is limited to where float32 holds it.

    The polynomial of Cephes (Moshier, 1989).
    """
    bounded = min(max(x, _MIN_EXPONENT), _MAX_EXPONENT)
    whole = np.floor(bounded * _LOG2_E + _HALF)
    rest = bounded - whole * _LN2_HIGH - whole * _LN2_LOW
    powers = _P0
    powers = powers * rest + _P1
    powers = powers * rest + _P2
    powers = powers * rest + _P3
    powers = powers * rest + _P4
    powers = powers * rest + _HALF
    found = powers * rest * rest + rest + _ONE
    return found * float_of_bits((np.int32(whole) + _BIAS) << _MANTISSA_BITS)


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + e to the -x)."""
    return _ONE / (_ONE + exponential(-x))
