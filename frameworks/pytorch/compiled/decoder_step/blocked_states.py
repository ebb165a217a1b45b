"""States in blocks, float32 [blocks, rows, INPUTS]: as AMX accumulates them, and reads them again.

So a GEMM writes its accumulators where they stay. Contiguous rows would be written a second time, with a stride as long
as a row; that takes a quarter of the GEMM's time.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_registers import INPUTS
from frameworks.pytorch.compiled.jit import llvm_function, strict_math
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_bfloat16_vector
from frameworks.pytorch.compiled.simd.elementwise import all_lanes, multiply_add
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, VECTORS, at, function, int64, load, splat

PIECE_BYTES = 4 * INPUTS
"""Of a row in a block, which has whole tiles of rows."""
_FLOAT, _I32 = ir.FloatType(), ir.IntType(32)
_VECTOR_OFFSETS = range(0, PIECE_BYTES, 4 * VECTORS.lanes)


@llvm_function
def copy_pieces(_context: Any, _source: Any, _source_bytes: Any, _target: Any, _target_bytes: Any, _count: Any) -> Any:
    """(address of the first piece, bytes from one to the next; those of the target; number of pieces) → nothing."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(arguments[index], BYTES) for index in (0, 2))
        with cgutils.for_range_slice(builder, int64(0), arguments[4], int64(1)) as (index, _):
            given = builder.gep(source, [builder.mul(index, arguments[1])])
            pointer = builder.gep(target, [builder.mul(index, arguments[3])])
            for offset, vector in zip(_VECTOR_OFFSETS, _vectors(builder, given), strict=True):
                _store(builder, vector, at(builder, pointer, offset))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), write


@llvm_function
def _rms_norm_pieces(_context: Any, _source: Any, _weight: Any, _epsilon: Any, _target: Any, _is_rounded: Any) -> Any:
    """(address of the first piece, bytes from one to the next, number of pieces; address of the weights; ε; address of
    the target, bytes from a piece to the next; whether it is bfloat16) → nothing; writes x / √(mean(x²) + ε) · weight.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, source_bytes, count = (builder.extract_value(arguments[0], index) for index in range(3))
        target, target_bytes = (builder.extract_value(arguments[3], index) for index in range(2))
        source, weight, target = (builder.inttoptr(each, BYTES) for each in (source, arguments[1], target))
        scale = _scale(builder, (source, source_bytes, count), arguments[2])

        def write_parts(store: Any) -> None:
            with cgutils.for_range_slice(builder, int64(0), count, int64(1)) as (index, _):
                given = _vectors(builder, builder.gep(source, [builder.mul(index, source_bytes)]))
                factors = _vectors(builder, builder.gep(weight, [builder.mul(index, int64(PIECE_BYTES))]))
                found = [
                    builder.fmul(builder.fmul(each, scale), factor) for each, factor in zip(given, factors, strict=True)
                ]
                store(found, builder.gep(target, [builder.mul(index, target_bytes)]))

        def store_floats(found: list[Any], pointer: Any) -> None:
            for offset, vector in zip(_VECTOR_OFFSETS, found, strict=True):
                _store(builder, vector, at(builder, pointer, offset))

        with builder.if_else(builder.icmp_signed("!=", arguments[4], int64(0))) as (then, otherwise):
            with then:
                write_parts(lambda found, pointer: store_bfloat16_vector(builder, _joined(builder, found), pointer))
            with otherwise:
                write_parts(store_floats)
        return context.get_dummy_value()

    given, written = types.UniTuple(types.int64, 3), types.UniTuple(types.int64, 2)
    return types.void(given, types.int64, types.float32, written, types.int64), write


@strict_math
def rms_norm_row(parts: Any, weight: int, epsilon: Any, target: Any, is_rounded: int) -> None:
    """Apply RMSNorm to a row: write x / √(mean(x²) + ε) · weight. `parts`: address of the first piece, bytes from one
    to the next, and their number. `target`: address, and bytes from a piece to the next. `is_rounded`: whether it is
    bfloat16, rounded from float32.
    """
    _rms_norm_pieces(parts, weight, epsilon, target, is_rounded)


def _vectors(builder: Any, pointer: Any) -> list[Any]:
    return [load(builder, at(builder, pointer, offset), VECTORS.floats) for offset in _VECTOR_OFFSETS]


def _store(builder: Any, vector: Any, pointer: Any) -> None:
    builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=4)


def _scale(builder: Any, parts: tuple[Any, Any, Any], epsilon: Any) -> Any:
    """Return 1 / √(mean(x²) + ε) in all lanes."""
    source, source_bytes, count = parts
    sums = [cgutils.alloca_once_value(builder, all_lanes(0.0)) for _ in _VECTOR_OFFSETS]
    with cgutils.for_range_slice(builder, int64(0), count, int64(1)) as (index, _):
        given = _vectors(builder, builder.gep(source, [builder.mul(index, source_bytes)]))
        for variable, each in zip(sums, given, strict=True):
            builder.store(multiply_add(builder, each, each, builder.load(variable)), variable)
    total = _sum(builder, [builder.load(each) for each in sums])
    size = builder.sitofp(builder.mul(count, int64(INPUTS)), _FLOAT)
    mean = builder.fadd(builder.fdiv(total, size), epsilon)
    root = builder.call(function(builder, "llvm.sqrt.f32", _FLOAT, [_FLOAT]), [mean])
    inverse = builder.fdiv(ir.Constant(_FLOAT, 1.0), root)
    return splat(builder, inverse, VECTORS.lanes)


def _sum(builder: Any, vectors: list[Any]) -> Any:
    """Return the sum of all lanes of float vectors, by halves."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [builder.fadd(*pair) for pair in zip(vectors[:half], vectors[half:], strict=True)]
    [total] = vectors
    lanes = VECTORS.lanes
    while lanes > 1:
        lanes //= 2
        halves = (ir.Constant(ir.VectorType(_I32, lanes), list(range(first, first + lanes))) for first in (0, lanes))
        total = builder.fadd(*(builder.shuffle_vector(total, total, each) for each in halves))
    return builder.extract_element(total, ir.Constant(_I32, 0))


def _joined(builder: Any, vectors: list[Any]) -> Any:
    """Return the elements of vectors, one behind the other, as one vector."""
    while len(vectors) > 1:
        count = 2 * vectors[0].type.count
        order = ir.Constant(ir.VectorType(_I32, count), list(range(count)))
        vectors = [builder.shuffle_vector(*pair, order) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]
