"""Compile GEMV (one query) and GEMM (16 queries) kernels for this CPU, with a top-k threshold as their epilogue.

Needs numba, the extra `compiled`.
"""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.registry import cpu_target

from extensions.search.collections.scan.gemm_tiles import QUERIES, tile
from frameworks.core.vector_search import Vectors

_WIDE_ROWS, _NARROW_ROWS = 8, 6
"""Rows of a GEMM tile: its accumulators fit in the registers of AVX-512, and of smaller CPUs."""

GemmKernel = Callable[..., tuple[int, int]]
"""(rows, queries, bias, bias_step, thresholds, masks, mask_of, first, end, out, out_step, values, positions,
query_indices) → (the row after the last one that was scored, number of candidates).

`rows`: float32 [capacity, d]; those from `first` to `end` are scored. `queries`: float32 [d, 1 or 16]. `bias`:
float32, is subtracted from the inner products of a row; `bias_step` 0: one value for all. A row is a candidate of
a query if its value reaches the query's threshold and its position is in the mask `masks[mask_of[query]]`, bool
[masks, rows]; -1: no mask. The candidates are written to `values` float32, `positions` and `query_indices` int64
[max_candidates]; the call ends early when they are nearly full. `out`: float32, gets the values of each tile, its
rows `out_step` elements apart; 0: the tiles overwrite each other.
"""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled kernels. They release the interpreter's lock. `rows`: the minimum number of rows of `gemm`."""

    gemv: GemmKernel
    gemm: GemmKernel
    rows: int

    def multiply(self, rows: Vectors, queries: Vectors, out: Vectors) -> None:
        """Write the matmul of rows [n, d] and queries [d, QUERIES] to `out`, float32 [n, QUERIES]."""
        no_bias, no_masks = np.zeros(1, np.float32), np.empty((0, 0), np.bool_)
        thresholds, mask_of = np.full(QUERIES, np.nan, np.float32), np.full(QUERIES, -1)
        no_candidates = np.empty(self.rows * QUERIES, np.int64)
        found = (no_candidates.astype(np.float32), no_candidates, no_candidates)
        flat = out.reshape(-1)
        self.gemm(rows, queries, no_bias, 0, thresholds, no_masks, mask_of, 0, len(rows), flat, QUERIES, *found)


def compile_kernels() -> Kernels:
    """Compile the kernels; takes a few seconds. Raises NotImplementedError for a CPU without fused multiply-add."""
    _, _, names = cpu_target.target_context.codegen().magic_tuple()
    features = names.split(",")
    if platform.machine().lower() in {"x86_64", "amd64"} and "+fma" not in features:
        raise NotImplementedError("expected a CPU with fused multiply-add")
    rows = _WIDE_ROWS if "+avx512f" in features else _NARROW_ROWS
    return Kernels(_compile(1, 1), _compile(rows, QUERIES), rows)


def _compile(tile_rows: int, tile_queries: int) -> GemmKernel:
    compute_tile = tile(tile_rows, tile_queries)

    def gemm(  # noqa: PLR0913, PLR0917 - numba reads scalars and arrays faster than tuples of them
        rows: Any,
        queries: Any,
        bias: Any,
        bias_step: Any,
        thresholds: Any,
        masks: Any,
        mask_of: Any,
        first: Any,
        end: Any,
        out: Any,
        out_step: Any,
        values: Any,
        positions: Any,
        query_indices: Any,
    ) -> Any:
        found = 0
        max_found = len(values) - tile_rows * tile_queries
        # The last tile begins earlier than after the one before it, so that it reads no memory behind the rows.
        last = len(rows) - tile_rows
        next_row = first
        while next_row < end and found <= max_found:
            row = min(next_row, last)
            tile_values = out[row * out_step :]
            has_candidate = compute_tile(
                rows[row:].ctypes,
                queries.ctypes,
                bias[row * bias_step :].ctypes,
                thresholds.ctypes,
                tile_values.ctypes,
                rows.shape[1],
                bias_step,
            )
            if has_candidate != 0:
                for position in range(next_row, min(row + tile_rows, end)):
                    for query in range(tile_queries):
                        value = tile_values[(position - row) * tile_queries + query]
                        mask = mask_of[query]
                        if value >= thresholds[query] and (mask < 0 or masks[mask, position]):
                            values[found], positions[found], query_indices[found] = value, position, query
                            found += 1
            next_row = row + tile_rows
        return min(next_row, end), found

    floats, matrix = types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")
    integers, integer, masks = types.Array(types.int64, 1, "C"), types.int64, types.Array(types.boolean, 2, "C")
    arguments = [matrix, matrix, floats, integer, floats, masks, integers, integer, integer, floats, integer]
    signature = types.UniTuple(integer, 2)(*arguments, floats, integers, integers)
    made: GemmKernel = numba.njit(signature, nogil=True, error_model="numpy")(gemm)
    return made


def check(kernels: Kernels) -> bool:
    """Return whether the kernels are right for small integers, whose sums are exact in any order."""
    rows = (np.arange(19 * 87, dtype=np.float32) % 11).reshape(19, 87)
    bias = np.arange(19, dtype=np.float32)
    for gemm, count in ((kernels.gemv, 1), (kernels.gemm, QUERIES)):
        queries = (np.arange(87 * count, dtype=np.float32) % 5).reshape(87, count)
        expected = rows @ queries - bias[:, None]
        if not _is_right(gemm, rows, queries, bias, expected):
            return False
    return True


def _is_right(gemm: GemmKernel, rows: Vectors, queries: Vectors, bias: Vectors, expected: Vectors) -> bool:
    thresholds = np.median(expected, axis=0)
    values, positions, query_indices = np.empty(999, np.float32), np.empty(999, np.int64), np.empty(999, np.int64)
    masks, mask_of = np.arange(19)[None] != 7, np.arange(len(thresholds)) % 2 - 1
    out = np.empty(9 * QUERIES, dtype=np.float32)
    end, found = gemm(
        rows, queries, bias, 1, thresholds, masks, mask_of, 2, 18, out, 0, values, positions, query_indices
    )
    reached = expected >= thresholds
    reached[:2] = reached[18:] = False
    reached[7] &= mask_of < 0
    wanted = np.flatnonzero(reached)
    chosen = positions[:found] * len(thresholds) + query_indices[:found]
    return (
        end == 18
        and bool(np.array_equal(chosen, wanted))
        and bool(np.array_equal(values[:found], expected.ravel()[wanted]))
    )
