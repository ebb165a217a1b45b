"""Convert a decimal to the nearest float64: the Eisel-Lemire algorithm, and for few digits that of Clinger."""

from typing import Any

import numpy as np

from app.protocols.shared.json.numerals.llvm import (
    bits_of,
    high_product,
    inlined,
    leading_zeros,
    load_double,
    load_word,
)
from app.protocols.shared.json.numerals.tables import FIRST_POWER, FLOAT_POWERS_BYTE, LAST_POWER, MAX_EXACT_POWER

# numba computes a uint64 with an int64 as float64: each constant has the type of its words.
_U = np.uint64
_ZERO, _ONE, _THREE, _NINE = (_U(each) for each in (0, 1, 3, 9))
_LOW_BITS, _MANTISSA_BITS = _U(0x1FF), _U(52)
_MAX_EXACT_DECIMAL = _U(2**53)
NOT_FOUND = _U(2**64 - 1)
"""The bits of no finite number: the conversion is left to another parser."""


@inlined
def _eisel_lemire(decimal: Any, power: Any, tables: Any) -> Any:
    """Return the bits of decimal · 10^power, correctly rounded; NOT_FOUND: not certain, subnormal or very large."""
    if decimal == _ZERO:
        return _ZERO
    if power < FIRST_POWER or power > LAST_POWER:
        return NOT_FOUND
    zeros = leading_zeros(decimal)
    decimal <<= zeros
    five = tables + (power - FIRST_POWER) * 16
    upper, lower = high_product(decimal, load_word(five)), decimal * load_word(five)
    if upper & _LOW_BITS == _LOW_BITS:
        # The bits below could change those that count: the product with all 128 bits of the power.
        more = high_product(decimal, load_word(five + 8))
        lower += more
        if lower < more:
            upper += _ONE
        if lower == NOT_FOUND:
            return NOT_FOUND
    highest = upper >> _U(63)
    shift = highest + _NINE
    mantissa = upper >> shift
    # 217706 / 2^16: the logarithm of ten to the base of two.
    exponent = ((217706 * power) >> 16) + 63 + 1023 + np.int64(highest) - np.int64(zeros)
    if exponent <= 0 or exponent >= 2046:
        return NOT_FOUND
    if lower <= _ONE and -4 <= power <= 23 and mantissa & _THREE == _ONE and mantissa << shift == upper:
        mantissa ^= _ONE  # halfway between two numbers: to the even one
    mantissa = (mantissa + (mantissa & _ONE)) >> _ONE
    # The bit above the mantissa, also one of rounding, is added to the exponent.
    return (_U(exponent - 1) << _MANTISSA_BITS) + mantissa


@inlined
def to_bits(decimal: Any, power: Any, tables: Any) -> Any:
    """As `_eisel_lemire`. Up to 53 bits over an exact power of ten are one division."""
    if decimal <= _MAX_EXACT_DECIMAL and -MAX_EXACT_POWER <= power <= 0:
        return bits_of(np.float64(np.int64(decimal)) / load_double(tables + FLOAT_POWERS_BYTE - power * 8))
    return _eisel_lemire(decimal, power, tables)
