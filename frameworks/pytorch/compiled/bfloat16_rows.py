"""Rows of bfloat16 in the order of the tiles: pairs of neighbouring inputs."""

from typing import Any

import numpy as np
import torch

from frameworks.pytorch.compiled.buffers import Floats
from frameworks.pytorch.compiled.jit import bits_of_float, compiled, inlined, pointer_to_floats, store_integer

_HALF_BITS = np.int32(16)
_LOW_HALF, _HIGH_HALF = np.int32(0xFFFF), np.int32(-65536)
_BELOW_HALF, _ONE = np.int32(0x7FFF), np.int32(1)
_MAGNITUDE, _INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_QUIET = np.int32(0x7FC00000)


@inlined
def _rounded(value: Any) -> Any:
    """Return bits whose high half is the nearest bfloat16, of two the even one; the low half is anything."""
    bits = bits_of_float(value)
    odd = (bits >> _HALF_BITS) & _ONE
    return _QUIET if (bits & _MAGNITUDE) > _INFINITY else bits + _BELOW_HALF + odd


@compiled
def write_pairs(row: int, tile: int, size: int, index: int, inputs: int) -> None:
    """A `Format.write_row`: bfloat16 [pairs of inputs, rows of the tile, 2], with a zero behind an odd number."""
    source = pointer_to_floats(row)
    for pair in range(inputs // 2):
        low = (_rounded(source[2 * pair]) >> _HALF_BITS) & _LOW_HALF
        high = _rounded(source[2 * pair + 1]) & _HIGH_HALF
        store_integer(tile + 4 * (pair * size + index), np.int32(low | high))
    if inputs % 2:
        low = (_rounded(source[inputs - 1]) >> _HALF_BITS) & _LOW_HALF
        store_integer(tile + 4 * (inputs // 2 * size + index), np.int32(low))


def round_bits(values: Floats) -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Return the bits of the nearest bfloat16."""
    narrow = torch.from_numpy(np.ascontiguousarray(values)).bfloat16().view(torch.uint16)
    return narrow.numpy()
