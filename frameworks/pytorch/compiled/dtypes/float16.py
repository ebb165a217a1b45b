"""GEMM of float16 weights, converted to float32, and float32 activations: as exact as float32 where the weights are."""

from typing import Any

import numpy as np
from llvmlite import ir

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.float32_activations import float32_packer
from frameworks.pytorch.compiled.matmul.float_tiles import Shape, float_tile, widening_step
from frameworks.pytorch.compiled.matmul.formats import Format, PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import activation_packer, matmul_loops, region
from frameworks.pytorch.compiled.matmul.packing import Floats, pack_floats
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, PARTS, VECTORS, at, load
from frameworks.pytorch.large_pages import Bytes

_SHAPE = Shape(1, 2 * BLOCK, 4)
_HALVES = ir.VectorType(ir.HalfType(), VECTORS.lanes)


def _load_weights(builder: Any, w: Any) -> list[list[Any]]:
    halves = [load(builder, at(builder, w, 2 * VECTORS.lanes * part), _HALVES) for part in PARTS]
    return [[builder.fpext(each, VECTORS.floats) for each in halves]]


def _tile(rows: int, blocks: int) -> Any:
    return float_tile(VECTORS, _SHAPE, widening_step(VECTORS, _load_weights), rows, blocks)


FORMAT = Format("float16", 1, _SHAPE.step_bytes, 4, _tile, float32_packer(1), packs_one_row=False)
pack_activations = activation_packer(FORMAT)
matmul = matmul_loops(FORMAT)
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(weight: Floats) -> Bytes:
    """Return weights [outputs, inputs] as float16 bytes of [blocks, inputs, outputs of a block]."""
    return pack_floats(weight, FORMAT, np.float16)


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
