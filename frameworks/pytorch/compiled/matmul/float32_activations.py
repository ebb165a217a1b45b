"""Rows of float32 in the order of the tiles."""

from typing import Any

from frameworks.pytorch.compiled.jit import part, pointer_to_floats
from frameworks.pytorch.compiled.simd.interleave import interleave


def float_row_writer(inputs_at_once: int) -> Any:
    """Return a `Format.write_rows` for float32 [inputs, rows of the tile], with zeros up to whole steps."""

    @part
    def write_rows(x: int, tile: int, rows: int, inputs: int) -> None:
        interleave(x, 4 * inputs, tile, rows, inputs)
        target = pointer_to_floats(tile)
        for position in range(rows * inputs, rows * ((inputs + inputs_at_once - 1) // inputs_at_once * inputs_at_once)):
            target[position] = 0

    return write_rows
