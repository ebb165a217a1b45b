"""Emit the inner loops of the GEMM and GEMV kernels as LLVM IR: a tile of rows x queries, and its comparison.

A GEMM tile keeps its accumulators in registers, one vector of queries for each row, over the loop of dimensions. A
GEMV tile is one row, read as one stream: several streams at once reach 0.7 of the memory's bandwidth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

QUERIES = 16
"""Queries of a GEMM tile: one vector of AVX-512, or two of AVX2."""
_FLOAT, _BYTE, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LINE = 16
"""Float32 elements of a cache line."""
_LANES = 8
"""Float32 elements of a GEMV vector. With 16, AVX-512 reads a row at 0.77 of the speed (AMD EPYC)."""
_UNROLLED = 8
"""Vectors of a GEMV row in flight: so many accumulators hide the latency of one FMA."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of a tile. Pointers are to float32; `dimensions` and `bias_step` are int64.

    `rows`: of the first row. `queries`: [dimensions, queries]. `bias`: is subtracted from the row's inner products,
    `bias_step` elements apart. `thresholds`: [queries]. `out`: [rows, queries], gets the values.
    """

    builder: Any
    rows: Any
    queries: Any
    bias: Any
    thresholds: Any
    out: Any
    dimensions: Any
    bias_step: Any


def tile(rows: int, queries: int) -> Any:
    """Return a function for code that numba compiles: `tile(rows, queries, bias, thresholds, out, d, bias_step)`.

    It writes the values of a tile and returns an integer, which is not zero if one of them reaches its threshold.
    `queries`: QUERIES, or 1 with one row. The first five arguments are pointers of arrays (`array.ctypes`).
    """
    emit: Callable[[Operands], Any] = _gemv if queries == 1 else lambda operands: _gemm(operands, rows)

    @intrinsic  # type: ignore[untyped-decorator]
    def call(
        _context: Any, rows: Any, queries: Any, bias: Any, thresholds: Any, out: Any, dimensions: Any, bias_step: Any
    ) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointers = [
                builder.bitcast(context.make_helper(builder, kind, value).data, _FLOAT.as_pointer())
                for kind, value in zip(signature.args[:5], arguments[:5], strict=True)
            ]
            return emit(Operands(builder, *pointers, *arguments[5:]))

        return types.int64(rows, queries, bias, thresholds, out, dimensions, bias_step), write

    return call


def _gemm(operands: Operands, num_rows: int) -> Any:
    """Emit the GEMM tile: `num_rows` rows times QUERIES queries."""
    builder, dimensions = operands.builder, operands.dimensions
    vector = ir.VectorType(_FLOAT, QUERIES)
    starts = [builder.gep(operands.rows, [builder.mul(dimensions, _number(row))]) for row in range(num_rows)]
    sums = [cgutils.alloca_once(builder, vector) for _ in starts]
    for row, own in enumerate(sums):
        builder.store(_splat(builder, _bias(operands, row)), own)
    ahead = builder.mul(dimensions, _number(num_rows))
    fma = _fma(builder, vector)

    def add(index: Any) -> None:
        of_queries = _load(builder, builder.gep(operands.queries, [builder.mul(index, _number(QUERIES))]), vector)
        for start, own in zip(starts, sums, strict=True):
            factor = _splat(builder, builder.load(builder.gep(start, [index])))
            builder.store(builder.call(fma, [of_queries, factor, builder.load(own)]), own)

    whole = builder.and_(dimensions, _number(-_LINE))
    with cgutils.for_range_slice(builder, _number(0), whole, _number(_LINE)) as (first, _):
        for start in starts:
            _prefetch(builder, builder.gep(start, [builder.add(first, ahead)]))
        for step in range(_LINE):
            add(builder.add(first, _number(step)))
    with cgutils.for_range_slice(builder, whole, dimensions, _number(1)) as (index, _):
        add(index)
    thresholds = _load(builder, operands.thresholds, vector)
    reached = ir.Constant(ir.VectorType(ir.IntType(1), QUERIES), [0] * QUERIES)
    for row, own in enumerate(sums):
        values = builder.load(own)
        address = builder.gep(operands.out, [_number(row * QUERIES)])
        builder.store(values, builder.bitcast(address, vector.as_pointer()), align=4)
        reached = builder.or_(reached, builder.fcmp_ordered(">=", values, thresholds))
    return builder.zext(builder.bitcast(reached, ir.IntType(QUERIES)), _I64)


def _gemv(operands: Operands) -> Any:
    """Emit the GEMV tile: one row times one query."""
    builder, dimensions = operands.builder, operands.dimensions
    vector = ir.VectorType(_FLOAT, _LANES)
    sums = [cgutils.alloca_once(builder, vector) for _ in range(_UNROLLED)]
    for own in sums:
        builder.store(ir.Constant(vector, [0.0] * _LANES), own)
    tail = cgutils.alloca_once(builder, _FLOAT)
    builder.store(_bias(operands, 0), tail)

    def add(index: Any, kind: Any, own: Any) -> None:
        factors = [_load(builder, builder.gep(each, [index]), kind) for each in (operands.rows, operands.queries)]
        builder.store(builder.call(_fma(builder, kind), [*factors, builder.load(own)]), own)

    block = _LANES * _UNROLLED
    blocks = builder.and_(dimensions, _number(-block))
    vectors = builder.and_(dimensions, _number(-_LANES))
    # Not up to `blocks`: LLVM would know the number of rounds, unroll them and read vectors out of order, at 0.75 of
    # the speed (AMD Zen 4).
    with cgutils.for_range_slice(builder, _number(0), builder.sub(dimensions, _number(block - 1)), _number(block)) as (
        first,
        _,
    ):
        for number, own in enumerate(sums):
            add(builder.add(first, _number(number * _LANES)), vector, own)
    with cgutils.for_range_slice(builder, blocks, vectors, _number(_LANES)) as (first, _):
        add(first, vector, sums[0])
    with cgutils.for_range_slice(builder, vectors, dimensions, _number(1)) as (index, _):
        add(index, _FLOAT, tail)
    first, *others = (builder.load(own) for own in sums)
    for other in others:
        first = builder.fadd(first, other)
    value = builder.fadd(_sum(builder, first), builder.load(tail))
    builder.store(value, operands.out)
    return builder.zext(builder.fcmp_ordered(">=", value, builder.load(operands.thresholds)), _I64)


def _bias(operands: Operands, row: int) -> Any:
    """Return the initial value of a row's accumulator: the negative bias."""
    builder = operands.builder
    address = builder.gep(operands.bias, [builder.mul(operands.bias_step, _number(row))])
    return builder.fsub(ir.Constant(_FLOAT, 0.0), builder.load(address))


def _sum(builder: Any, vector: Any) -> Any:
    """Return the horizontal sum of a vector, reduced in pairs."""
    count = vector.type.count
    while count > 1:
        count //= 2
        halves = [
            builder.shuffle_vector(
                vector, ir.Constant(vector.type, ir.Undefined), _indices(range(start, start + count))
            )
            for start in (0, count)
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for the memory of the next tile; the CPU alone does not follow so many rows at once."""
    kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _I32, _I32, _I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, keep, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
    builder.call(prefetch, [builder.bitcast(address, _BYTE.as_pointer()), read, keep, data])


def _fma(builder: Any, kind: Any) -> Any:
    name = f"llvm.fma.v{kind.count}f32" if isinstance(kind, ir.VectorType) else "llvm.fma.f32"
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)


def _load(builder: Any, pointer: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=4)


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(_FLOAT, QUERIES), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, _indices([0] * QUERIES))


def _indices(values: Any) -> Any:
    indices = list(values)
    return ir.Constant(ir.VectorType(_I32, len(indices)), indices)


def _number(value: int) -> Any:
    return ir.Constant(_I64, value)
