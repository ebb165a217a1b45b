"""Products of weights of 4 bits in groups of inputs, and rows that are rounded to int8, each group of 32 by its largest
number.
"""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.dot_products import four_bits
from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import multiplier, orderer, region
from frameworks.pytorch.compiled.matmul.group_formats import group_format, pack_groups
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers
from frameworks.pytorch.large_pages import Bytes

_DOT = four_bits()
FORMAT = group_format("int4", _DOT, has_shift=True)
order = orderer(FORMAT)
multiply = multiplier(FORMAT)
_run = region(FORMAT, order, multiply)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(values: Integers, scale: Floats, shift: Floats | None, group: int) -> Bytes:
    """As `pack_groups`: values from -8 to 7."""
    return pack_groups(values, (scale, np.zeros_like(scale) if shift is None else shift), group, FORMAT, _DOT)


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
