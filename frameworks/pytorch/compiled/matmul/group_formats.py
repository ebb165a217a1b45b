"""Weights quantized in groups of inputs: each group has a scale. Packed for `per_group_tile`."""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.matmul.dot_products import GROUP, DotProduct
from frameworks.pytorch.compiled.matmul.formats import Format
from frameworks.pytorch.compiled.matmul.integer_tiles import HEAD_BYTES, per_group_shape, per_group_tile
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers, blocks_of, empty_buffer, packed_block
from frameworks.pytorch.compiled.matmul.quantized_activations import per_group_quantizer
from frameworks.pytorch.large_pages import Bytes

_NIBBLE = 4
# The largest scale of an output lies here: float16 holds those that are 2^-24 of it or more, exactly from 2^-13.
_LARGEST_EXPONENT = 10
_LEAST_EXPONENT = -126


def group_format(name: str, dot: DotProduct, has_shift: bool) -> Format:
    """Return the format of weights with a scale for each group, and a shift (a zero point in float)."""

    def tile(rows: int, blocks: int) -> Any:
        return per_group_tile(dot, has_shift, rows, blocks)

    shape = per_group_shape(dot, has_shift)
    writer = per_group_quantizer(dot, has_shift)
    return Format(name, GROUP, shape.step_bytes, shape.row_step_bytes, tile, writer, HEAD_BYTES)


def pack_groups(values: Integers, factors: tuple[Floats, ...], group: int, format_: Format, dot: DotProduct) -> Bytes:
    """Return packed weights with their scales, and their shifts if the format has them.

    `values`: int8 [outputs, inputs]. `factors`: float32 [outputs, inputs // group] each. `group`: a multiple of 32. The
    factors are rounded to float16, times a power of two for each output.
    """
    scale, *shifts = (np.repeat(each, group // GROUP, 1) for each in factors)
    # Of the integers in memory, which have the zero point added.
    factors_of_groups = np.stack([scale, *(each - dot.zero_point * scale for each in shifts)], 2, dtype=np.float32)
    head = _power_below(np.abs(factors_of_groups).max((1, 2)))
    float16_factors = (factors_of_groups / head[:, None, None]).astype(np.float16)
    outputs, inputs = values.shape
    buffer = empty_buffer(format_, outputs, inputs)
    blocks = buffer.reshape(-1, format_.block_bytes(inputs))
    groups = blocks[:, HEAD_BYTES:].reshape(len(blocks), -1, format_.step_bytes)
    start = format_.step_bytes - dot.group_bytes
    for index, block in blocks_of(head):
        blocks[index, :HEAD_BYTES] = block.view(np.uint8)
    for index, block in blocks_of(float16_factors):
        ordered = np.ascontiguousarray(block.transpose(1, 2, 0))
        groups[index, :, :start] = ordered.view(np.uint8).reshape(len(ordered), -1)
    for index, block in blocks_of(values):
        whole: Bytes = packed_block(block, dot.at_once, dot.zero_point)
        if dot.is_int4:
            middle = whole.shape[1] // 2
            whole = (whole[:, :middle] | (whole[:, middle:] << _NIBBLE)).view(np.uint8)
        groups[index, :, start:] = whole.reshape(len(whole), -1)
    return buffer


def _power_below(largest: Floats) -> Floats:
    """Return for each value the power of two that divides it to at most 2^_LARGEST_EXPONENT."""
    _, exponent = np.frexp(largest)
    power: Floats = np.ldexp(np.float32(1), np.maximum(exponent - _LARGEST_EXPONENT, _LEAST_EXPONENT))
    return power
