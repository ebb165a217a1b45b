"""GEMM of float32 weights."""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.float32_activations import float32_packer
from frameworks.pytorch.compiled.matmul.float_tiles import Shape, float_tile, widening_step
from frameworks.pytorch.compiled.matmul.formats import Format, PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import activation_packer, matmul_loops, region
from frameworks.pytorch.compiled.matmul.packing import Floats, pack_floats
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, PARTS, VECTORS, at, load
from frameworks.pytorch.large_pages import Bytes

_SHAPE = Shape(1, 4 * BLOCK, 4)


def _load_weights(builder: Any, w: Any) -> list[list[Any]]:
    return [[load(builder, at(builder, w, 4 * VECTORS.lanes * part), VECTORS.floats) for part in PARTS]]


def _tile(rows: int, blocks: int) -> Any:
    return float_tile(VECTORS, _SHAPE, widening_step(VECTORS, _load_weights), rows, blocks)


FORMAT = Format("float32", 1, _SHAPE.step_bytes, 4, _tile, float32_packer(1), packs_one_row=False)
pack_activations = activation_packer(FORMAT)
matmul = matmul_loops(FORMAT)
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(weight: Floats) -> Bytes:
    """Return weights [outputs, inputs] as float32 bytes of [blocks, inputs, outputs of a block]."""
    return pack_floats(weight, FORMAT, np.float32)


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
