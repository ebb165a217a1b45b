"""Multiply blocks of rows by queries: a matmul whose result is the inner product of each pair.

On one core, one query (GEMV) is bound by memory bandwidth, and many queries (GEMM) by the FMA units. numpy's GEMV
reaches 0.4 of the bandwidth, its `vecdot` 0.8. Its GEMM is fast for small matrices only: it packs larger ones, which
costs more than it saves where one matrix has few rows.
"""

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import structlog

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
