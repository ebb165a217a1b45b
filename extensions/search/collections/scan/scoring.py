"""Score rows against up to 16 queries, and return the rows that reach the top-k threshold of a query.

The threshold is the epilogue of the GEMM: values are compared while they are in registers, or in the cache.

On one core, one query (GEMV) is bound by memory bandwidth, and many queries (GEMM) by the FMA units. numpy's GEMV
reaches 0.4 of the bandwidth, its `vecdot` 0.8. Its GEMM is fast for small matrices only: it packs larger ones, which
costs more than it saves where one matrix has few rows.
"""

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import structlog

from extensions.search.collections.contract import Metric
from extensions.search.collections.store.metadata_columns import Mask
from extensions.search.collections.store.segments import Positions, Segment
from frameworks.core.vector_search import Vectors

if TYPE_CHECKING:
    from extensions.search.collections.scan.compiled_gemm import Kernels

log = structlog.get_logger(__name__)

QUERY_BLOCK = 16
"""Queries of one GEMM. Further queries reuse the same block of rows while it is in the cache."""
GEMV_QUERIES = 4
"""Up to this number of queries, numpy computes one GEMV for each."""
_SMALL_GEMM = 800_000
"""rows x queries x dimensions that numpy's BLAS multiplies without packing."""
MAX_CANDIDATES = 16_384
"""Candidates that one call of a compiled kernel returns at most."""
GEMV_BYTES = 12 * 1024 * 1024
GEMM_BYTES = 2 * 1024 * 1024
"""Bytes of rows of one numpy GEMV (one query) and one GEMM: the values stay in a core's cache."""
CACHED_BYTES = 512 * 1024
"""Bytes of rows that numpy multiplies by several queries in turn: they stay in a core's cache."""


class Candidates(NamedTuple):
    """Candidates: `values` float32 [n], `positions` int64 [n] in a segment, `query_indices` int64 [n].

    A value is the inner product, or for the Euclidean metric 2 q·x - x·x, which orders rows as their distance does.
    """

    values: Vectors
    positions: Positions
    query_indices: Positions

    def take(self, chosen: slice | Mask) -> "Candidates":
        """Return some of the candidates: a slice, or those of a mask, bool [n]."""
        return Candidates(self.values[chosen], self.positions[chosen], self.query_indices[chosen])


class EligibleRows(NamedTuple):
    """The rows of a segment that may be candidates.

    `masks`: bool [masks, rows]. `of_query`: int64 [QUERY_BLOCK], the mask of each query; -1: all rows.
    """

    masks: Mask
    of_query: Positions


class ScoringKernel(Protocol):
    """Scores rows against fixed queries: the compiled kernel, and numpy's."""

    def __call__(
        self, segment: Segment, first: int, end: int, thresholds: Vectors, eligible: EligibleRows
    ) -> tuple[int, Candidates]:
        """Score the rows from `first` to `end`, or fewer. Return the row after the last one, and the candidates.

        `thresholds`: float32 [QUERY_BLOCK]; a row with at least this value is a candidate. NaN: no candidates.
        """


def make_kernel(queries: Vectors, metric: Metric) -> ScoringKernel:
    """Return the fastest kernel for `queries`, float32 [1 to QUERY_BLOCK, d]."""
    scaled = 2 * queries if metric is Metric.EUCLID else queries
    kernels = compiled_kernels()
    return _NumpyKernel(scaled) if kernels is None else _CompiledKernel(scaled, kernels)


class _CompiledKernel:
    def __init__(self, queries: Vectors, kernels: "Kernels") -> None:
        count, dimensions = queries.shape
        lanes = 1 if count == 1 else QUERY_BLOCK
        self._gemm = kernels.gemv if count == 1 else kernels.gemm
        self._rows = kernels.rows
        self._queries = np.zeros((dimensions, lanes), dtype=np.float32)
        self._queries[:, :count] = queries.T
        self._tile = np.empty(kernels.rows * lanes, dtype=np.float32)
        self._found = Candidates(
            np.empty(MAX_CANDIDATES, np.float32), np.empty(MAX_CANDIDATES, np.int64), np.empty(MAX_CANDIDATES, np.int64)
        )

    def __call__(
        self, segment: Segment, first: int, end: int, thresholds: Vectors, eligible: EligibleRows
    ) -> tuple[int, Candidates]:
        vectors, bias, bias_step = segment.vectors, _NO_BIAS, 0
        if segment.squared_norms is not None:
            bias, bias_step = segment.squared_norms, 1
        if len(vectors) < self._rows:
            vectors = _padded(vectors, self._rows)
            bias = _padded(bias, self._rows)
        end, count = self._gemm(
            vectors, self._queries, bias, bias_step, thresholds, *eligible, first, end, self._tile, 0, *self._found
        )
        return end, self._found.take(slice(count))


_NO_BIAS = np.zeros(1, dtype=np.float32)


def _padded(array: Vectors, count: int) -> Vectors:
    """Return the array padded with zeros to `count` rows."""
    return np.concatenate([array, np.zeros((count - len(array), *array.shape[1:]), dtype=np.float32)])


class _NumpyKernel:
    def __init__(self, queries: Vectors) -> None:
        self._count = len(queries)
        self._matmul = BlockMatmul(queries)
        size = GEMV_BYTES if self._count == 1 else CACHED_BYTES if self._count <= GEMV_QUERIES else GEMM_BYTES
        self._rows = max(64, size // queries[0].nbytes // 64 * 64)

    def __call__(
        self, segment: Segment, first: int, end: int, thresholds: Vectors, eligible: EligibleRows
    ) -> tuple[int, Candidates]:
        end = min(end, first + self._rows)
        values = self._matmul(segment.vectors[first:end])
        if segment.squared_norms is not None:
            values = values - segment.squared_norms[first:end, None]
        reached = values >= thresholds[: self._count]
        found = np.flatnonzero(reached.ravel(order="K"))
        if reached.flags.c_contiguous:
            rows, query_indices = np.divmod(found, self._count)
        else:
            query_indices, rows = np.divmod(found, len(values))
        positions, masks = rows + first, eligible.of_query[query_indices]
        is_eligible = masks < 0
        is_masked = ~is_eligible
        is_eligible[is_masked] = eligible.masks[masks[is_masked], positions[is_masked]]
        return end, Candidates(values[rows, query_indices], positions, query_indices).take(is_eligible)


class BlockMatmul:
    """Multiplies rows by fixed queries. `queries`: float32 [q, d]."""

    def __init__(self, queries: Vectors) -> None:
        self._count, self._dimensions = queries.shape
        self._kernels = compiled_kernels() if self._count > GEMV_QUERIES else None
        if self._count <= GEMV_QUERIES:
            self._groups = [queries]
        else:
            padding = np.zeros((-self._count % QUERY_BLOCK, self._dimensions), dtype=np.float32)
            padded = np.concatenate([queries, padding])
            self._groups = [
                np.ascontiguousarray(padded[start : start + QUERY_BLOCK].T)
                for start in range(0, len(padded), QUERY_BLOCK)
            ]

    def __call__(self, rows: Vectors) -> Vectors:
        """Return the inner products, float32 [n, q]; `rows`: [n, d], contiguous."""
        if self._count <= GEMV_QUERIES:
            out = np.empty((self._count, len(rows)), dtype=np.float32)
            for index, query in enumerate(self._groups[0]):
                np.vecdot(rows, query, out=out[index])
            return out.T
        parts = [self._grouped(rows, group) for group in self._groups]
        out = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return out[:, : self._count]

    def _grouped(self, rows: Vectors, group: Vectors) -> Vectors:
        out = np.empty((len(rows), QUERY_BLOCK), dtype=np.float32)
        if self._kernels is not None and len(rows) >= self._kernels.rows:
            self._kernels.multiply(rows, group, out)
            return out
        at_once = max(16, _SMALL_GEMM // (QUERY_BLOCK * self._dimensions) // 16 * 16)
        whole = len(rows) - len(rows) % at_once
        if whole:
            shape = (-1, at_once, self._dimensions)
            np.matmul(rows[:whole].reshape(shape), group, out=out[:whole].reshape(-1, at_once, QUERY_BLOCK))
        if whole < len(rows):
            np.matmul(rows[whole:], group, out=out[whole:])
        return out


@cache
def compiled_kernels() -> "Kernels | None":
    """Return the kernels that are compiled for this CPU; None where numba is absent, or its code is wrong."""
    if importlib.util.find_spec("numba") is None:
        return None
    from extensions.search.collections.scan import compiled_gemm

    try:
        kernels = compiled_gemm.compile_kernels()
        if compiled_gemm.check(kernels):
            return kernels
        log.warning("the compiled kernels of searches are wrong on this CPU; numpy is used")
    except Exception as error:  # noqa: BLE001 - numba and LLVM raise many kinds
        log.warning("the kernels of searches could not be compiled; numpy is used", error=str(error))
    return None
