"""The formats of packed weights and activations: what a GEMM reads, and in which order.

Inputs are taken in steps of a fixed number; the last step is padded with zeros. Weights are [blocks, steps, outputs of
a block]: a GEMM reads them in one stream. The last block is padded with zeros, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import inlined
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, NARROW_LANES, VECTORS

# Sixteen registers hold the accumulators of four rows, and not of eight.
LARGEST_TILE = 4 if VECTORS.lanes == NARROW_LANES else 8
MOST_ROWS = 512
"""Rows that a GEMM has at once, before the next ones are packed: packed rows stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Format:
    """Packed weights and activations of one GEMM.

    `inputs_at_once`: of a step. `step_bytes`: of the weights of a block for a step. `head_bytes`: of what a block has
    before its first step. `row_step_bytes`, `row_head_bytes`: of a packed row of activations, likewise. `tile`: (rows,
    blocks) → the inner loop, a function for compiled code: (activations, weights, sums, steps, next weights) → nothing;
    addresses, and a count; the next weights as in `float_tile`. It writes float32 [blocks, rows, outputs of a block].
    `pack_tile`: a compiled function that packs the activations of a tile: (float32 [rows, inputs], tile, rows, inputs)
    → nothing. `packs_one_row`: whether a single row has to be packed. `rows_at_once`: memory for packed rows is for a
    multiple of so many. `most_bytes`: of MOST_ROWS packed rows; if they take more, half of them are multiplied at once,
    and if those take more, `fewest_rows`.
    """

    name: str
    inputs_at_once: int
    step_bytes: int
    row_step_bytes: int
    tile: Callable[..., Any]
    pack_tile: Any
    head_bytes: int = 0
    row_head_bytes: int = 0
    largest_tile: int = LARGEST_TILE
    packs_one_row: bool = True
    rows_at_once: int = 1
    most_bytes: int = 0
    fewest_rows: int = MOST_ROWS // 2

    def steps(self, inputs: int) -> int:
        """Return the number of steps of so many inputs."""
        return -(-inputs // self.inputs_at_once)

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a packed row."""
        return self.steps(inputs) * self.row_step_bytes + self.row_head_bytes

    def tile_bytes(self, rows: int, inputs: int) -> int:
        """Return the bytes of so many packed rows."""
        return -(-rows // self.rows_at_once) * self.rows_at_once * self.row_bytes(inputs)

    def most_rows(self, inputs: int) -> int:
        """Return the rows of so many inputs that are multiplied at once."""
        rows = MOST_ROWS
        while rows > self.fewest_rows and rows * self.row_bytes(inputs) > self.most_bytes:
            rows //= 2
        return rows

    def block_bytes(self, inputs: int) -> int:
        """Return the bytes of a block of the weights."""
        return self.steps(inputs) * self.step_bytes + self.head_bytes

    def held_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of packed weights [outputs, inputs]."""
        return -(-outputs // BLOCK) * self.block_bytes(inputs)


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """A format, and the address of the region that multiplies its weights. `pack`: from the weights, as the format's
    module has them, to packed uint8. `feed_forward`: address of the region of the fused feed-forward block, see
    amx_feed_forward.py; 0 where there is none. `has_amx_layout`: whether activations are packed as `amx_gemm.pack_row`
    does, and outputs can be in blocks.
    """

    format: Format
    address: int
    pack: Callable[..., "np.ndarray[Any, np.dtype[np.uint8]]"]
    feed_forward: int = 0
    has_amx_layout: bool = False


def row_sizer(format_: Format) -> Callable[[int], int]:
    """Return `Format.row_bytes` for compiled code."""
    at_once, step_bytes, head_bytes = format_.inputs_at_once, format_.row_step_bytes, format_.row_head_bytes

    @inlined
    def row_bytes(inputs: int) -> int:
        return (inputs + at_once - 1) // at_once * step_bytes + head_bytes

    return row_bytes


def rows_limiter(format_: Format) -> Callable[[int], int]:
    """Return `Format.most_rows` for compiled code."""
    most_bytes, fewest, row_bytes = format_.most_bytes, format_.fewest_rows, row_sizer(format_)

    @inlined
    def most_rows(inputs: int) -> int:
        rows = MOST_ROWS
        while rows > fewest and rows * row_bytes(inputs) > most_bytes:
            rows //= 2
        return rows

    return most_rows


def tile_sizer(format_: Format) -> Callable[[int], int]:
    """Return, for compiled code, the function from the remaining rows to the rows of the next tile.

    The largest tile comes first; the last two are nearly equal. A tile of few rows takes as long as one of four, since
    each sum waits for the sum before: 9 rows as 8 and 1 would take as long as 12.
    """
    largest = format_.largest_tile

    @inlined
    def tile_rows(left: int) -> int:
        if left >= 2 * largest:
            return largest
        return (left + 1) // 2 if left > largest else left

    return tile_rows
