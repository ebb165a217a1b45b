"""Compare rows with up to 16 queries in one pass, and return those that reach the threshold of a query.

The choice is part of the pass: values are compared while they are in registers, or in the cache.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from frameworks.collections.contract import Metric, Vectors
from frameworks.collections.scan.block_matmul import FEW_QUERIES, GROUP, BlockProduct, compiled_kernels
from frameworks.collections.store.metadata_columns import Mask
from frameworks.collections.store.segments import Positions, Segment

if TYPE_CHECKING:
    from frameworks.collections.scan.compiled_gemm import Kernels

ROOM = 16_384
"""Candidates that a compiled pass returns at once."""
LONE_BYTES = 12 * 1024 * 1024
BLOCK_BYTES = 2 * 1024 * 1024
"""Of rows that one product of numpy reads, with one query and with many: their values stay in a core's cache."""
CACHED_BYTES = 512 * 1024
"""Of rows that numpy multiplies by several queries in turn: they stay in a core's cache."""


class Found(NamedTuple):
    """Candidates: `values` float32 [n], `positions` int64 [n] in a segment, `numbers` int64 [n] of their queries.

    A value is the inner product, or for Euclid 2 q·x - x·x, which orders rows as their distance does.
    """

    values: Vectors
    positions: Positions
    numbers: Positions

    def take(self, chosen: slice | Mask) -> "Found":
        """Return some of the candidates."""
        return Found(self.values[chosen], self.positions[chosen], self.numbers[chosen])


class Admitted(NamedTuple):
    """The rows of a segment that may be found. `masks`: bool [masks, rows]. `of_query`: int64 [GROUP], -1: all rows."""

    masks: Mask
    of_query: Positions


class Pass(Protocol):
    """Compares rows with fixed queries. The compiled one, and numpy's."""

    def __call__(
        self, segment: Segment, first: int, end: int, thresholds: Vectors, admitted: Admitted
    ) -> tuple[int, Found]:
        """Compare the rows from `first` to `end`, or fewer. Return the row after the last one, and the candidates.

        `thresholds`: float32 [GROUP]; a row with this value or more is a candidate. NaN: no row is.
        """


def make_pass(queries: Vectors, metric: Metric) -> Pass:
    """Return the fastest pass for `queries`, float32 [1 to GROUP, d]."""
    scaled = 2 * queries if metric is Metric.EUCLID else queries
    kernels = compiled_kernels()
    return _NumpyPass(scaled) if kernels is None else _CompiledPass(scaled, kernels)


class _CompiledPass:
    def __init__(self, queries: Vectors, kernels: "Kernels") -> None:
        count, dimensions = queries.shape
        lanes = 1 if count == 1 else GROUP
        self._choose = kernels.lone if count == 1 else kernels.many
        self._rows = kernels.rows
        self._queries = np.zeros((dimensions, lanes), dtype=np.float32)
        self._queries[:, :count] = queries.T
        self._tile = np.empty(kernels.rows * lanes, dtype=np.float32)
        self._found = Found(np.empty(ROOM, np.float32), np.empty(ROOM, np.int64), np.empty(ROOM, np.int64))

    def __call__(
        self, segment: Segment, first: int, end: int, thresholds: Vectors, admitted: Admitted
    ) -> tuple[int, Found]:
        vectors, bias, bias_step = segment.vectors, _NO_BIAS, 0
        if segment.squares is not None:
            bias, bias_step = segment.squares, 1
        if len(vectors) < self._rows:
            vectors = _longer(vectors, self._rows)
            bias = _longer(bias, self._rows)
        end, count = self._choose(
            vectors, self._queries, bias, bias_step, thresholds, *admitted, first, end, self._tile, 0, *self._found
        )
        return end, self._found.take(slice(count))


_NO_BIAS = np.zeros(1, dtype=np.float32)


def _longer(array: Vectors, count: int) -> Vectors:
    """Return the array with zeros behind it."""
    return np.concatenate([array, np.zeros((count - len(array), *array.shape[1:]), dtype=np.float32)])


class _NumpyPass:
    def __init__(self, queries: Vectors) -> None:
        self._count = len(queries)
        self._product = BlockProduct(queries)
        size = LONE_BYTES if self._count == 1 else CACHED_BYTES if self._count <= FEW_QUERIES else BLOCK_BYTES
        self._rows = max(64, size // queries[0].nbytes // 64 * 64)

    def __call__(
        self, segment: Segment, first: int, end: int, thresholds: Vectors, admitted: Admitted
    ) -> tuple[int, Found]:
        end = min(end, first + self._rows)
        values = self._product(segment.vectors[first:end])
        if segment.squares is not None:
            values = values - segment.squares[first:end, None]
        reached = values >= thresholds[: self._count]
        found = np.flatnonzero(reached.ravel(order="K"))
        if reached.flags.c_contiguous:
            rows, numbers = np.divmod(found, self._count)
        else:
            numbers, rows = np.divmod(found, len(values))
        positions, masks = rows + first, admitted.of_query[numbers]
        is_admitted = masks < 0
        is_masked = ~is_admitted
        is_admitted[is_masked] = admitted.masks[masks[is_masked], positions[is_masked]]
        return end, Found(values[rows, numbers], positions, numbers).take(is_admitted)
