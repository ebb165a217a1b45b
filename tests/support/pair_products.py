"""The arithmetic of the instruction TDPBF16PS (Intel AMX) in NumPy, without sums whose order a library chooses.

Intel's Software Developer's Manual, volume 2, defines it for each row and each output:

1. The products of even inputs are added to one float32 sum, those of odd inputs to another, pair after pair. Both
   sums begin at zero. Each addition is fused: the product is exact, and the sum is rounded once, to nearest even.
2. The sum of odd inputs is added to that of even inputs, and the result is added to the register.
3. Denormal inputs are read as zero. Denormal results become zero. MXCSR is not consulted.

The manual does not say whether a result is denormal before or after it is rounded. It is after, as for all other
vector instructions. NumPy's `@` is no replacement: the order of its sums depends on the CPU and on the row.
"""

from typing import Any

import numpy as np

_SMALLEST = float(np.finfo(np.float32).smallest_normal)
_ROUNDED_TO_SMALLEST = _SMALLEST - 2.0**-151
"""From here on, a number with 24 bits and an unbounded exponent is rounded to the smallest normal number, or above."""


def add_pair_products(sums: Any, rows: Any, weights: Any) -> Any:
    """Return float32 [rows, outputs]: `sums` plus the products, as one instruction computes them.

    `rows`: bits of bfloat16, uint16 [rows, pairs, 2]. `weights`: the same, [pairs, outputs, 2].
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        of_rows, of_weights = _widened(rows).swapaxes(0, 1)[:, :, None], _widened(weights)[:, None]
        exact = of_rows * of_weights
        pairs = _sums_of_held(exact)
        if pairs is None:
            pairs = np.zeros(exact.shape[1:], dtype=np.float32)
            for product in exact:
                pairs = rounded_sum(pairs, product)
        return _flushed(_flushed(sums) + _flushed(pairs[..., 0] + pairs[..., 1]))


def _sums_of_held(exact: Any) -> Any:
    """Return the sums over the first axis, one number after the other, in float32.

    They are the fused ones if float32 can hold each product and no sum is denormal. Otherwise the result is None.
    """
    products = exact.astype(np.float32)
    # The first sum is that of zero and a product: it is not -0.
    products[0] += 0
    sums = np.add.accumulate(products, axis=0)
    is_held = (products == exact) | np.isnan(exact)
    is_normal = (np.abs(sums) >= np.float32(_SMALLEST)) | (sums == 0) | np.isnan(sums)
    return sums[-1] if (is_held & is_normal).all() else None


def rounded_sum(numbers: Any, products: Any) -> Any:
    """Return float32 `numbers` plus float64 `products`, rounded once.

    float64 cannot hold each such sum, and a second rounding could err. So the float64 sum is rounded to odd: an
    inexact sum gets an odd last bit, and rounding it to fewer bits equals rounding the exact sum (Boldo and
    Melquiond, 2008).
    """
    wide = numbers.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        sums = wide + products
        share = sums - wide
        errors = (wide - (sums - share)) + (products - share)
        bits = sums.view(np.int64)
        is_inexact = np.isfinite(errors) & (errors != 0) & (bits % 2 == 0)
        odd = (bits + np.where(is_inexact, np.where((errors > 0) == (sums > 0), 1, -1), 0)).view(np.float64)
        return np.where(np.abs(odd) < _ROUNDED_TO_SMALLEST, np.copysign(0, odd), odd).astype(np.float32)


def _widened(bits: Any) -> Any:
    """Return bfloat16 as float64."""
    return _flushed((bits.astype(np.uint32) << 16).view(np.float32)).astype(np.float64)


def _flushed(numbers: Any) -> Any:
    """Return float32 numbers with zeros for those that are denormal."""
    return np.where(np.abs(numbers) < np.float32(_SMALLEST), np.copysign(np.float32(0), numbers), numbers)
