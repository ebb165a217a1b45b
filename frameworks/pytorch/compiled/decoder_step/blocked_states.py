"""Rows whose numbers lie in blocks, float32 [blocks, rows, INPUTS]: as matrix tiles add them up, and read them again.

So a product writes its sums where they stay. Whole rows would be written a second time, in places as far apart as a row
is long; that takes a quarter of the product's time.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_registers import INPUTS
from frameworks.pytorch.compiled.jit import llvm_function, ordered
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_rounded
from frameworks.pytorch.compiled.simd.elementwise import all_lanes, multiply_add
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, VECTORS, at, function, load, number, splat

PART_BYTES = 4 * INPUTS
"""Of a row in a block, which has whole tiles of rows."""
_FLOAT, _I32 = ir.FloatType(), ir.IntType(32)
_VECTOR_OFFSETS = range(0, PART_BYTES, 4 * VECTORS.lanes)


@llvm_function
def copy_parts(_context: Any, _source: Any, _source_bytes: Any, _target: Any, _target_bytes: Any, _count: Any) -> Any:
    """(address of the first part, bytes from one to the next; those of the target; number of parts) → nothing."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(arguments[index], BYTES) for index in (0, 2))
        with cgutils.for_range_slice(builder, number(0), arguments[4], number(1)) as (index, _):
            given = builder.gep(source, [builder.mul(index, arguments[1])])
            place = builder.gep(target, [builder.mul(index, arguments[3])])
            for offset, vector in zip(_VECTOR_OFFSETS, _vectors(builder, given), strict=True):
                _store(builder, vector, at(builder, place, offset))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), write


@llvm_function
def _normalize_parts(_context: Any, _source: Any, _weight: Any, _epsilon: Any, _target: Any, _is_rounded: Any) -> Any:
    """(address of the first part, bytes from one to the next, number of parts; address of the weights; ε; address of
    the target, bytes from a part to the next; whether it is bfloat16) → nothing, after writing x / √(mean(x²) + ε) ·
    weight.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, source_bytes, count = (builder.extract_value(arguments[0], index) for index in range(3))
        target, target_bytes = (builder.extract_value(arguments[3], index) for index in range(2))
        source, weight, target = (builder.inttoptr(each, BYTES) for each in (source, arguments[1], target))
        scale = _scale(builder, (source, source_bytes, count), arguments[2])

        def write_parts(store: Any) -> None:
            with cgutils.for_range_slice(builder, number(0), count, number(1)) as (index, _):
                given = _vectors(builder, builder.gep(source, [builder.mul(index, source_bytes)]))
                factors = _vectors(builder, builder.gep(weight, [builder.mul(index, number(PART_BYTES))]))
                found = [
                    builder.fmul(builder.fmul(each, scale), factor) for each, factor in zip(given, factors, strict=True)
                ]
                store(found, builder.gep(target, [builder.mul(index, target_bytes)]))

        def store_floats(found: list[Any], place: Any) -> None:
            for offset, vector in zip(_VECTOR_OFFSETS, found, strict=True):
                _store(builder, vector, at(builder, place, offset))

        with builder.if_else(builder.icmp_signed("!=", arguments[4], number(0))) as (then, otherwise):
            with then:
                write_parts(lambda found, place: store_rounded(builder, _joined(builder, found), place))
            with otherwise:
                write_parts(store_floats)
        return context.get_dummy_value()

    given, written = types.UniTuple(types.int64, 3), types.UniTuple(types.int64, 2)
    return types.void(given, types.int64, types.float32, written, types.int64), write


@ordered
def normalize_row(parts: Any, weight: int, epsilon: Any, target: Any, is_rounded: int) -> None:
    """Write x / √(mean(x²) + ε) · weight of a row. `parts`: address of the first one, bytes from one to the next, and
    their number. `target`: address, and bytes from a part to the next. `is_rounded`: whether it is bfloat16; its
    numbers are those of float32, rounded.
    """
    _normalize_parts(parts, weight, epsilon, target, is_rounded)


def _vectors(builder: Any, place: Any) -> list[Any]:
    return [load(builder, at(builder, place, offset), VECTORS.floats) for offset in _VECTOR_OFFSETS]


def _store(builder: Any, vector: Any, place: Any) -> None:
    builder.store(vector, builder.bitcast(place, vector.type.as_pointer()), align=4)


def _scale(builder: Any, parts: tuple[Any, Any, Any], epsilon: Any) -> Any:
    """Return 1 / √(mean(x²) + ε) in all lanes."""
    source, source_bytes, count = parts
    sums = [cgutils.alloca_once_value(builder, all_lanes(0.0)) for _ in _VECTOR_OFFSETS]
    with cgutils.for_range_slice(builder, number(0), count, number(1)) as (index, _):
        given = _vectors(builder, builder.gep(source, [builder.mul(index, source_bytes)]))
        for variable, each in zip(sums, given, strict=True):
            builder.store(multiply_add(builder, each, each, builder.load(variable)), variable)
    total = _sum(builder, [builder.load(each) for each in sums])
    size = builder.sitofp(builder.mul(count, number(INPUTS)), _FLOAT)
    mean = builder.fadd(builder.fdiv(total, size), epsilon)
    root = builder.call(function(builder, "llvm.sqrt.f32", _FLOAT, [_FLOAT]), [mean])
    inverse = builder.fdiv(ir.Constant(_FLOAT, 1.0), root)
    return splat(builder, inverse, VECTORS.lanes)


def _sum(builder: Any, vectors: list[Any]) -> Any:
    """Return the sum of all lanes, as halves that are added."""
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
    """Return the numbers of vectors, one behind the other, as one vector."""
    while len(vectors) > 1:
        count = 2 * vectors[0].type.count
        order = ir.Constant(ir.VectorType(_I32, count), list(range(count)))
        vectors = [builder.shuffle_vector(*pair, order) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]
