"""Products of int8 weights with a scale for each output, and rows that are rounded to int8, each by its largest number.

Rounded as `int8_products` rounds; the sums are exact, so every library gives the same whole numbers.
"""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.dot_products import GROUP, eight_bits
from frameworks.pytorch.compiled.matmul.formats import Format, PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import multiplier, orderer, region
from frameworks.pytorch.compiled.matmul.integer_tiles import HEAD_BYTES, ROW_HEAD_BYTES, row_tile
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers, blocks_of, empty_buffer, in_order
from frameworks.pytorch.compiled.matmul.quantized_activations import whole_row_writer
from frameworks.pytorch.large_pages import Bytes

_DOT = eight_bits()


def _tile(rows: int, blocks: int) -> Any:
    return row_tile(_DOT, rows, blocks)


FORMAT = Format(
    "int8", GROUP, _DOT.group_bytes, GROUP * _DOT.row_width, _tile, whole_row_writer(_DOT), HEAD_BYTES, ROW_HEAD_BYTES
)  # fmt: skip
order = orderer(FORMAT)
multiply = multiplier(FORMAT)
_run = region(FORMAT, order, multiply)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(values: Integers, scale: Floats) -> Bytes:
    """Return int8 weights [outputs, inputs] with their scales [outputs]."""
    outputs, inputs = values.shape
    buffer = empty_buffer(FORMAT, outputs, inputs)
    blocks = buffer.reshape(-1, FORMAT.block_bytes(inputs))
    for index, block in blocks_of(scale):
        blocks[index, :HEAD_BYTES] = block.view(np.uint8)
    for index, block in blocks_of(values):
        blocks[index, HEAD_BYTES:] = in_order(block, _DOT.at_once, _DOT.offset).reshape(-1)
    return buffer


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
