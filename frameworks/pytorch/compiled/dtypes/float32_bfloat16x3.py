"""GEMM of float32 weights by AMX: each number is the sum of three bfloat16, and six of nine products are added.

The products that are left out are below the last bit of float32. AMX multiplies bfloat16 16 times as fast as vectors
multiply float32. A sum that overflows is infinite or NaN. Source: Intel oneMKL, compute mode float_to_bf16x3.
"""

from typing import Any

import numpy as np
import torch

from frameworks.pytorch.compiled.amx.amx_gemm import (
    StoredWeights,
    amx_activation_packer,
    amx_format,
    amx_matmul_loops,
)
from frameworks.pytorch.compiled.amx.amx_registers import INPUTS, STEP_BYTES
from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import region
from frameworks.pytorch.compiled.matmul.packing import Floats, blocks_of, empty_buffer
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK
from frameworks.pytorch.large_pages import Bytes

_PARTS = 3
_STORED_BYTES = _PARTS * STEP_BYTES
FORMAT = amx_format("float32 as three bfloat16", _STORED_BYTES, _PARTS)
pack_activations, matmul = amx_activation_packer(FORMAT), amx_matmul_loops(StoredWeights(_STORED_BYTES, parts=_PARTS))
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(weight: Floats) -> Bytes:
    """Return weights [outputs, inputs] as bytes of bfloat16 [blocks, steps, parts, pairs of inputs of a step, outputs
    of a block, 2].
    """
    outputs, inputs = weight.shape
    buffer = empty_buffer(FORMAT, outputs, inputs)
    packed = buffer.view(np.uint16).reshape(-1, FORMAT.steps(inputs), _PARTS, INPUTS // 2, BLOCK, 2)
    for index, block in blocks_of(weight):
        rest = torch.from_numpy(np.pad(block, ((0, 0), (0, -inputs % INPUTS))))
        for part in range(_PARTS):
            rounded = rest.bfloat16()
            rest = rest - rounded.float()
            bits = rounded.view(torch.uint16).numpy().reshape(BLOCK, -1, INPUTS // 2, 2)
            packed[index, :, part] = bits.transpose(1, 2, 0, 3)
    return buffer


PACKED = PackedFormat(FORMAT, ADDRESS, pack)
