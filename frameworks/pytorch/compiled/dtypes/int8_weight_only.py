"""GEMM of int8 weights in groups of inputs by AMX: activations are bfloat16, and weights are dequantized to it."""

from typing import Any

from frameworks.pytorch.compiled.amx.amx_gemm import amx_activation_packer, amx_matmul_loops
from frameworks.pytorch.compiled.amx.amx_int8_weights import FORMAT, STORED, pack
from frameworks.pytorch.compiled.jit import address_of
from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import region

pack_activations, matmul = amx_activation_packer(FORMAT), amx_matmul_loops(STORED)
_run = region(FORMAT, pack_activations, matmul)


def _region(arguments: Any) -> None:
    _run(arguments)


ADDRESS = address_of(_region, keeps_order=True)
PACKED = PackedFormat(FORMAT, ADDRESS, pack, has_amx_layout=True)
