"""GEMM of int8 weights in groups of inputs, and int8 activations, each group of 32 quantized by its absolute
maximum.
"""

from typing import Any

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.dot_products import int8_group_dot_product
from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import activation_packer, matmul_loops, region
from frameworks.pytorch.compiled.matmul.group_formats import group_format, pack_groups
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers
from frameworks.pytorch.large_pages import Bytes

_DOT_PRODUCT = int8_group_dot_product()
FORMAT = group_format("int8 in groups", _DOT_PRODUCT, has_shift=False)
pack_activations = activation_packer(FORMAT)
matmul = matmul_loops(FORMAT)
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(values: Integers, scale: Floats, group: int) -> Bytes:
    """Return packed int8 weights, as `pack_groups`: int8 `values` [outputs, inputs] from -128 to 127."""
    return pack_groups(values, (scale,), group, FORMAT, _DOT_PRODUCT)


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
