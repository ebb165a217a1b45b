"""Compile the product of rows and 16 queries for this CPU. Needs numba, the extra `compiled`.

A tile is a few rows times 16 queries: one vector of AVX-512, or two of AVX2. Its sums stay in registers while the
dimensions pass, and each row is read from memory once.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from frameworks.collections.contract import Vectors

QUERIES = 16
_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_QUERIES = ir.VectorType(_FLOAT, QUERIES)
_WIDE_ROWS, _NARROW_ROWS = 8, 4
_LINE = 16
"""Float32 numbers of a cache line."""

Product = Callable[[Vectors, Vectors, Vectors], None]
"""(rows [n, d], queries [d, 16], out [n, 16]) → nothing, after writing the inner products; all float32, contiguous."""


def compile_product() -> Product:
    """Compile the product; takes about a second. It runs without the interpreter's lock."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    tile_rows = _WIDE_ROWS if "+avx512f" in features.split(",") else _NARROW_ROWS
    tile, single = _tile(tile_rows), _tile(1)

    def product(rows: Any, queries: Any, out: Any) -> None:
        count, dimensions = rows.shape
        whole = count - count % tile_rows
        for first in range(0, whole, tile_rows):
            tile(rows[first:].ctypes, queries.ctypes, out[first:].ctypes, dimensions)
        for row in range(whole, count):
            single(rows[row:].ctypes, queries.ctypes, out[row:].ctypes, dimensions)

    matrix = types.Array(types.float32, 2, "C")
    made: Product = numba.njit(types.void(matrix, matrix, matrix), nogil=True, error_model="numpy")(product)
    return made


def _tile(tile_rows: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def tile(_context: Any, rows: Any, queries: Any, out: Any, dimensions: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointers = [
                context.make_helper(builder, kind, value).data
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            ]
            _write_tile(builder, pointers, arguments[3], tile_rows)
            return context.get_dummy_value()

        return types.void(rows, queries, out, dimensions), write

    return tile


def _write_tile(builder: Any, pointers: list[Any], dimensions: Any, tile_rows: int) -> None:
    rows, queries, out = (builder.bitcast(each, _FLOAT.as_pointer()) for each in pointers)
    sums = [cgutils.alloca_once(builder, _QUERIES) for _ in range(tile_rows)]
    for each in sums:
        builder.store(ir.Constant(_QUERIES, [0.0] * QUERIES), each)
    starts = [builder.gep(rows, [builder.mul(dimensions, _number(row))]) for row in range(tile_rows)]
    ahead = builder.mul(dimensions, _number(tile_rows))
    whole = builder.and_(dimensions, _number(-_LINE))
    with cgutils.for_range_slice(builder, _number(0), whole, _number(_LINE)) as (first, _):
        for start in starts:
            _prefetch(builder, builder.gep(start, [builder.add(first, ahead)]))
        for step in range(_LINE):
            _add(builder, builder.add(first, _number(step)), queries, starts, sums)
    with cgutils.for_range_slice(builder, whole, dimensions, _number(1)) as (index, _):
        _add(builder, index, queries, starts, sums)
    for row, own in enumerate(sums):
        place = builder.gep(out, [_number(row * QUERIES)])
        builder.store(builder.load(own), builder.bitcast(place, _QUERIES.as_pointer()), align=4)


def _add(builder: Any, index: Any, queries: Any, starts: list[Any], sums: list[Any]) -> None:
    """Add the products of one dimension."""
    fma_type = ir.FunctionType(_QUERIES, [_QUERIES] * 3)
    fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fma.v{QUERIES}f32")
    place = builder.gep(queries, [builder.mul(index, _number(QUERIES))])
    of_queries = builder.load(builder.bitcast(place, _QUERIES.as_pointer()), align=4)
    for start, own in zip(starts, sums, strict=True):
        factor = _splat(builder, builder.load(builder.gep(start, [index])))
        builder.store(builder.call(fma, [of_queries, factor, builder.load(own)]), own)


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for the memory of the next tile; the CPU alone does not follow so many rows at once."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, keep, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
    builder.call(prefetch, [builder.bitcast(address, pointer), read, keep, data])


def _number(value: int) -> Any:
    return ir.Constant(_I64, value)


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_QUERIES, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, QUERIES), [0] * QUERIES)
    return builder.shuffle_vector(first, undefined, zeros)


def check(product: Product) -> bool:
    """Return whether the product is right for a few small numbers: their sums are exact in any order."""
    rows = (np.arange(19 * 7, dtype=np.float32) % 11).reshape(19, 7)
    queries = (np.arange(7 * QUERIES, dtype=np.float32) % 5).reshape(7, QUERIES)
    out = np.empty((19, QUERIES), dtype=np.float32)
    product(rows, queries, out)
    return bool(np.array_equal(out, rows @ queries))
