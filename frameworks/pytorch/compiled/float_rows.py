"""Rows of float32 in the order of the tiles."""

from typing import Any

from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats


def float_row_writer(inputs_at_once: int) -> Any:
    """Return a `Format.write_row` for float32 [inputs, rows of the tile], with zeros up to whole steps."""

    @compiled
    def write_row(row: int, tile: int, size: int, index: int, inputs: int) -> None:
        source, target = pointer_to_floats(row), pointer_to_floats(tile)
        for position in range(inputs):
            target[position * size + index] = source[position]
        for position in range(inputs, (inputs + inputs_at_once - 1) // inputs_at_once * inputs_at_once):
            target[position * size + index] = 0

    return write_row
