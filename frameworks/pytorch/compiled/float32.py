"""Products of float32 weights."""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.formats import float32
from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.products import BLOCK, ROWS, ROWS_AT_ONCE, VECTORS, WEIGHTS, multiplier, ordered

Floats = np.ndarray[Any, np.dtype[np.float32]]

multiply = multiplier(float32(VECTORS))


def _region(arguments: Any) -> None:
    for first in range(0, arguments[ROWS], ROWS_AT_ONCE):
        tiles, out, sizes, finish, number, threads = ordered(arguments, first)
        multiply(arguments[WEIGHTS], tiles, out, sizes, finish, number, threads)


ADDRESS = address_of(_region)


def pack(weight: Floats) -> Floats:
    """Return weights [outputs, inputs] as [blocks, inputs, outputs of a block]."""
    outputs, inputs = weight.shape
    blocks, whole = -(-outputs // BLOCK), outputs // BLOCK
    packed = np.zeros((blocks, inputs, BLOCK), dtype=np.float32)
    packed[:whole] = weight[: whole * BLOCK].reshape(whole, BLOCK, inputs).transpose(0, 2, 1)
    if whole < blocks:
        packed[whole, :, : outputs - whole * BLOCK] = weight[whole * BLOCK :].T
    return packed


def held_bytes(outputs: int, inputs: int) -> int:
    """Return the bytes of packed weights."""
    return -(-outputs // BLOCK) * BLOCK * inputs * 4


def tile_bytes(rows: int, inputs: int) -> int:
    """Return the bytes of ordered rows; one row is in order already."""
    return 4 * rows * inputs if rows > 1 else 0
