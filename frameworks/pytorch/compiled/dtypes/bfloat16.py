"""GEMM of bfloat16 weights: by AMX where the CPU has it, else by vectors."""

from typing import Any

import numpy as np
import torch

from frameworks.pytorch.compiled.cpu_features import has_amx
from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.formats import Format, PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import activation_packer, matmul_loops, region
from frameworks.pytorch.compiled.matmul.packing import Floats, blocks_of, empty_buffer
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK
from frameworks.pytorch.large_pages import Bytes

if has_amx():
    from frameworks.pytorch.compiled.amx.amx_feed_forward import feed_forward
    from frameworks.pytorch.compiled.amx.amx_gemm import FORMAT, amx_activation_packer, amx_matmul_loops

    pack_activations, matmul = amx_activation_packer(FORMAT), amx_matmul_loops()

    def _together(arguments: Any) -> None:
        feed_forward(arguments)

    _FEED_FORWARD = address_of(_together, keeps_order=True)
else:
    from frameworks.pytorch.compiled.dtypes.bfloat16_vectors import FORMAT

    _FEED_FORWARD = 0
    pack_activations, matmul = activation_packer(FORMAT), matmul_loops(FORMAT)
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)


def pack(weight: Floats, format_: Format = FORMAT) -> Bytes:
    """Return weights [outputs, inputs] as bfloat16 bytes of [blocks, pairs of inputs, outputs of a block, 2]."""
    outputs, inputs = weight.shape
    buffer = empty_buffer(format_, outputs, inputs)
    packed = buffer.view(np.uint16).reshape(-1, format_.steps(inputs) * format_.inputs_at_once // 2, BLOCK, 2)
    for index, block in blocks_of(weight):
        filled = np.pad(block, ((0, 0), (0, -inputs % format_.inputs_at_once)))
        bits = torch.from_numpy(filled).bfloat16().view(torch.uint16).numpy()
        packed[index] = bits.reshape(BLOCK, -1, 2).transpose(1, 0, 2)
    return buffer


PACKED = PackedFormat(FORMAT, ADDRESS, pack, _FEED_FORWARD, has_amx())
