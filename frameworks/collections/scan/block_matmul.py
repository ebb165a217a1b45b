"""Multiply blocks of rows by queries: the inner product of each pair.

On one core the limit is the memory's bandwidth for one query, and the CPU's multiplications for many. numpy's product
of a matrix and a vector reaches 0.4 of the former, its `vecdot` 0.8. Its product of two matrices is fast for small
ones only: it copies the parts of larger ones, which costs more than it saves where one matrix has few rows.
"""

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import structlog

from frameworks.collections.contract import Vectors

if TYPE_CHECKING:
    from frameworks.collections.scan.compiled_gemm import Kernels

log = structlog.get_logger(__name__)

GROUP = 16
"""Queries of one product; further ones are multiplied by the same block while it is in the cache."""
FEW_QUERIES = 4
"""So many are multiplied one by one by numpy."""
_SMALL_PRODUCT = 800_000
"""rows x queries x dimensions that numpy's library multiplies without copies."""


class BlockProduct:
    """Multiplies rows by fixed queries. `queries`: float32 [q, d]."""

    def __init__(self, queries: Vectors) -> None:
        self._count, self._dimensions = queries.shape
        self._kernels = compiled_kernels() if self._count > FEW_QUERIES else None
        if self._count <= FEW_QUERIES:
            self._groups = [queries]
        else:
            padding = np.zeros((-self._count % GROUP, self._dimensions), dtype=np.float32)
            padded = np.concatenate([queries, padding])
            self._groups = [
                np.ascontiguousarray(padded[start : start + GROUP].T) for start in range(0, len(padded), GROUP)
            ]

    def __call__(self, rows: Vectors) -> Vectors:
        """Return the inner products, float32 [n, q]; `rows`: [n, d], contiguous."""
        if self._count <= FEW_QUERIES:
            out = np.empty((self._count, len(rows)), dtype=np.float32)
            for index, query in enumerate(self._groups[0]):
                np.vecdot(rows, query, out=out[index])
            return out.T
        parts = [self._grouped(rows, group) for group in self._groups]
        out = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return out[:, : self._count]

    def _grouped(self, rows: Vectors, group: Vectors) -> Vectors:
        out = np.empty((len(rows), GROUP), dtype=np.float32)
        if self._kernels is not None and len(rows) >= self._kernels.rows:
            self._kernels.multiply(rows, group, out)
            return out
        at_once = max(16, _SMALL_PRODUCT // (GROUP * self._dimensions) // 16 * 16)
        whole = len(rows) - len(rows) % at_once
        if whole:
            shape = (-1, at_once, self._dimensions)
            np.matmul(rows[:whole].reshape(shape), group, out=out[:whole].reshape(-1, at_once, GROUP))
        if whole < len(rows):
            np.matmul(rows[whole:], group, out=out[whole:])
        return out


@cache
def compiled_kernels() -> "Kernels | None":
    """Return the passes that are compiled for this CPU; None where numba is absent, or its code is wrong."""
    if importlib.util.find_spec("numba") is None:
        return None
    from frameworks.collections.scan import compiled_gemm

    try:
        kernels = compiled_gemm.compile_kernels()
        if compiled_gemm.check(kernels):
            return kernels
        log.warning("the compiled passes of searches are wrong on this CPU; numpy's products are used")
    except Exception as error:  # noqa: BLE001 - numba and LLVM raise many kinds
        log.warning("the passes of searches could not be compiled; numpy's products are used", error=str(error))
    return None
