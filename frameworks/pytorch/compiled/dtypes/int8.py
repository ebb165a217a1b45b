"""GEMM of int8 weights with a scale for each output, and int8 activations, each token quantized by its absolute
maximum.

Quantized as in `int8_matmul`; integer sums are exact, so every library gives the same result.
"""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.dot_products import GROUP, int8_dot_product
from frameworks.pytorch.compiled.matmul.formats import Format, PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import activation_packer, matmul_loops, region
from frameworks.pytorch.compiled.matmul.integer_tiles import HEAD_BYTES, ROW_HEAD_BYTES, per_token_tile
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers, blocks_of, empty_buffer, packed_block
from frameworks.pytorch.compiled.matmul.quantized_activations import per_token_quantizer
from frameworks.pytorch.large_pages import Bytes

_DOT_PRODUCT = int8_dot_product()


def _tile(rows: int, blocks: int) -> Any:
    return per_token_tile(_DOT_PRODUCT, rows, blocks)


FORMAT = Format(
    "int8",
    GROUP,
    _DOT_PRODUCT.group_bytes,
    GROUP * _DOT_PRODUCT.activation_bytes,
    _tile,
    per_token_quantizer(_DOT_PRODUCT),
    HEAD_BYTES,
    ROW_HEAD_BYTES,
)
pack_activations = activation_packer(FORMAT)
matmul = matmul_loops(FORMAT)
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(values: Integers, scale: Floats) -> Bytes:
    """Return packed int8 weights [outputs, inputs] with their scales, float32 [outputs]."""
    outputs, inputs = values.shape
    buffer = empty_buffer(FORMAT, outputs, inputs)
    blocks = buffer.reshape(-1, FORMAT.block_bytes(inputs))
    for index, block in blocks_of(scale):
        blocks[index, :HEAD_BYTES] = block.view(np.uint8)
    for index, block in blocks_of(values):
        blocks[index, HEAD_BYTES:] = packed_block(block, _DOT_PRODUCT.at_once, _DOT_PRODUCT.zero_point).reshape(-1)
    return buffer


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
