"""Products of weights of 8 bits in groups of inputs, and rows that are rounded to int8, each group of 32 by its largest
number.
"""

from typing import Any

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.dot_products import eight_bits_in_groups
from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import multiplier, orderer, region
from frameworks.pytorch.compiled.matmul.group_formats import group_format, pack_groups
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers
from frameworks.pytorch.large_pages import Bytes

_DOT = eight_bits_in_groups()
FORMAT = group_format("int8 in groups", _DOT, has_shift=False)
order = orderer(FORMAT)
multiply = multiplier(FORMAT)
_run = region(FORMAT, order, multiply)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(values: Integers, scale: Floats, group: int) -> Bytes:
    """As `pack_groups`: values from -128 to 127."""
    return pack_groups(values, (scale,), group, FORMAT, _DOT)


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
