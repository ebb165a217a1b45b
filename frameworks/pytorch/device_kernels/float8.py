"""Conversion of float8 (e4m3) by its bits, in kernels for all cards: only Ada and later ones have instructions for it.

Source of the format: Micikevicius et al. (2022). It has no infinity, and NaN where all bits but the sign are set.
"""

import triton
import triton.language as tl


@triton.jit
def widen(packed):
    """Return bytes, uint8, as float16, which holds each number exactly. NaN becomes 480.

    With exponent and mantissa in their positions of float16 a number is 2 ** 8 times too small, also below the least
    normal one.
    """
    wide = packed.to(tl.uint16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def widen_with_nan(packed):
    """As `widen`, and NaN stays NaN."""
    return tl.where((packed & 0x7F) == 0x7F, float("nan"), widen(packed))


@triton.jit
def narrow(wide):
    """Return float32 as bytes, uint8, rounded to the nearest number, ties to even. Larger ones become 448.

    Infinity and NaN become NaN.
    """
    size = tl.minimum(tl.abs(wide), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    # 20 bits of the mantissa are rounded off, and the bias of the exponent falls from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    # Steps of 2 ** -9 below the least normal number. The sum with 1.5 * 2 ** 23 has no places for less than 1.
    small = ((size * 512.0 + 12582912.0) - 12582912.0).to(tl.int32)
    found = tl.where(size < 0.015625, small, normal)
    # A comparison with NaN is false.
    is_finite = tl.abs(wide) < float("inf")
    found = tl.where(is_finite, found, 0x7F)
    return (found | ((wide.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)
