"""GEMM of int4 weights in groups of inputs, and int8 activations, each group of 32 quantized by its absolute
maximum.
"""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.dot_products import int4_dot_product
from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import activation_packer, matmul_loops, region
from frameworks.pytorch.compiled.matmul.group_formats import group_format, pack_groups
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers
from frameworks.pytorch.large_pages import Bytes

_DOT_PRODUCT = int4_dot_product()
FORMAT = group_format("int4", _DOT_PRODUCT, has_shift=True)
pack_activations = activation_packer(FORMAT)
matmul = matmul_loops(FORMAT)
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(values: Integers, scale: Floats, shift: Floats | None, group: int) -> Bytes:
    """Return packed int4 weights, as `pack_groups`: int8 `values` [outputs, inputs] from -8 to 7."""
    return pack_groups(values, (scale, np.zeros_like(scale) if shift is None else shift), group, FORMAT, _DOT_PRODUCT)


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
