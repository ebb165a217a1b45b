"""GEMM of bfloat16 weights by vectors: dot products of pairs where the CPU has them, else converted to float32."""

from typing import Any

from llvmlite import ir

from frameworks.pytorch.compiled.cpu_features import has_bfloat16
from frameworks.pytorch.compiled.matmul.bfloat16_activations import pack_bfloat16_pairs
from frameworks.pytorch.compiled.matmul.float32_activations import float32_packer
from frameworks.pytorch.compiled.matmul.float_tiles import Shape, float_tile, widening_step
from frameworks.pytorch.compiled.matmul.formats import Format
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, PARTS, VECTORS, at, function, load, splat

_HAS_PAIRS = has_bfloat16()
_SHAPE = Shape(2, 4 * BLOCK, 4 if _HAS_PAIRS else 8)
_PAIRS = VECTORS.integers(32)
_HALF_BITS, _HIGH_HALF = 16, -65536


def _load_pairs(builder: Any, w: Any) -> list[Any]:
    return [load(builder, at(builder, w, 4 * VECTORS.lanes * part), _PAIRS) for part in PARTS]


def _load_weights(builder: Any, w: Any) -> list[list[Any]]:
    shift, mask = (ir.Constant(_PAIRS, [each] * VECTORS.lanes) for each in (_HALF_BITS, _HIGH_HALF))
    pairs = _load_pairs(builder, w)
    halves = [builder.shl(each, shift) for each in pairs], [builder.and_(each, mask) for each in pairs]
    return [[builder.bitcast(each, VECTORS.floats) for each in half] for half in halves]


def _add_pairs(builder: Any, x: Any, w: Any, rows: int, sums: list[list[Any]]) -> None:
    kind = VECTORS.floats
    multiply_add = function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", kind, [kind, _PAIRS, _PAIRS])
    weights = _load_pairs(builder, w)
    for row in range(rows):
        factor = splat(builder, load(builder, at(builder, x, 4 * row), ir.IntType(32)), VECTORS.lanes)
        for own, sum_ in zip(weights, sums[row], strict=True):
            builder.store(builder.call(multiply_add, [builder.load(sum_), own, factor]), sum_)


def _tile(rows: int, blocks: int) -> Any:
    add_step = _add_pairs if _HAS_PAIRS else widening_step(VECTORS, _load_weights)
    return float_tile(VECTORS, _SHAPE, add_step, rows, blocks)


_WRITE_ROWS = pack_bfloat16_pairs if _HAS_PAIRS else float32_packer(2)
FORMAT = Format("bfloat16", 2, _SHAPE.step_bytes, _SHAPE.row_step_bytes, _tile, _WRITE_ROWS)
