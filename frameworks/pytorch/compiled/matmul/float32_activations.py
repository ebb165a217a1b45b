"""Activations of float32, packed in the order of the tiles."""

from typing import Any

from frameworks.pytorch.compiled.jit import inlined_early, pointer_to_floats
from frameworks.pytorch.compiled.simd.interleave import interleave


def float32_packer(inputs_at_once: int) -> Any:
    """Return a `Format.pack_tile` for float32 [inputs, rows of the tile], padded with zeros to whole steps."""

    @inlined_early
    def pack_tile(x: int, tile: int, rows: int, inputs: int) -> None:
        interleave(x, 4 * inputs, tile, rows, inputs)
        target = pointer_to_floats(tile)
        for position in range(rows * inputs, rows * ((inputs + inputs_at_once - 1) // inputs_at_once * inputs_at_once)):
            target[position] = 0

    return pack_tile
