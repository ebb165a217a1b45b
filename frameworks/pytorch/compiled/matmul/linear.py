"""Linear layers with compiled GEMMs."""

from collections.abc import Iterable

import torch

from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import (
    BIAS,
    INPUTS,
    NUM_ARGUMENTS,
    OPERATION,
    OTHER,
    OUT,
    OUTPUTS,
    ROWS,
    TILES,
    WEIGHTS,
    X,
)
from frameworks.pytorch.compiled.matmul.packing import empty_parts
from frameworks.pytorch.compiled.parallel import NUM_RESERVED, Region
from frameworks.pytorch.compiled.simd.elementwise import ADD, MUL, NONE, SILU
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK
from frameworks.pytorch.large_pages import Bytes, has_large_pages

# Small layers are moved together, so many bytes at once: what is in memory twice for a moment.
_JOINED_BYTES = 16 * 1024 * 1024


class CompiledLinear:
    """A Linear layer that multiplies float32 activations. A token's result is the same whatever tokens are computed
    with it, and on any threads.
    """

    def __init__(
        self, packed: Bytes, shape: tuple[int, int], bias: torch.Tensor | None, packed_format: PackedFormat
    ) -> None:
        """`packed`: weights in the order of the format. `shape`: outputs, inputs. `bias`: [outputs]."""
        self.format = packed_format
        self.outputs, self.inputs = shape
        self.weights = packed
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._region = Region(packed_format.address, NUM_ARGUMENTS - NUM_RESERVED)
        self.arguments = arguments = self._region.arguments
        arguments[INPUTS], arguments[OUTPUTS] = self.inputs, self.outputs
        arguments[WEIGHTS] = packed.ctypes.data
        arguments[BIAS] = 0 if self.bias is None else self.bias.data_ptr()

    def move(self, weights: Bytes) -> None:
        """Copy the packed weights to this memory, uint8 of the same size, and use them there. No GEMM may run
        meanwhile.
        """
        weights[:] = self.weights
        self.weights = weights
        self.arguments[WEIGHTS] = weights.ctypes.data

    def tile_bytes(self, rows: int) -> int:
        """Return the bytes of the scratch buffer for a GEMM of so many rows."""
        if rows == 1 and not self.format.format.packs_one_row:
            return 0
        return self.packed_bytes(min(rows, self.most_rows))

    def packed_bytes(self, rows: int) -> int:
        """Return the bytes of so many packed rows of activations, all at once."""
        return self.format.format.tile_bytes(rows, self.inputs)

    def takes_packed(self, rows: int, part: int) -> bool:
        """Return whether the activations of so many rows can be packed before the GEMM, as `amx_gemm.pack_row` does.

        `part`: inputs that are written at once.
        """
        is_unmasked = part % self.format.format.inputs_at_once == 0
        return self.format.has_amx_layout and is_unmasked and rows <= self.most_rows

    @property
    def writes_blocks(self) -> bool:
        """Whether the GEMM can write its outputs in blocks, see `gemm.BLOCK_BYTES`."""
        return self.format.has_amx_layout and self.outputs % BLOCK == 0

    @property
    def most_rows(self) -> int:
        """Rows that are multiplied at once."""
        return self.format.format.most_rows(self.inputs)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows @ weightsᵀ + bias, [rows, outputs] in the dtype of `rows`, [rows, inputs]."""
        return self.computed(rows, NONE)

    def fused_silu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return SiLU of the layer's outputs, [rows, outputs] in the dtype of `rows`."""
        return self.computed(rows, SILU)

    def fused_mul(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs times `factor`, [rows, outputs], in the dtype of `rows`."""
        return self.computed(rows, MUL, factor)

    def fused_add(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs plus `summand`, [rows, outputs], in the dtype of `rows`."""
        return self.computed(rows, ADD, summand)

    def computed(self, rows: torch.Tensor, operation: int, other: torch.Tensor | None = None) -> torch.Tensor:
        """Return the layer's outputs after an operation of an epilogue, [rows, outputs] in the dtype of `rows`."""
        x = rows.to(torch.float32).contiguous()
        count = len(x)
        out = torch.empty((count, self.outputs), dtype=torch.float32)
        tiles = torch.empty(self.tile_bytes(count), dtype=torch.uint8)
        if other is not None:
            other = other.to(torch.float32).contiguous()
        arguments = self.arguments
        arguments[ROWS] = count
        arguments[X] = x.data_ptr()
        arguments[OUT] = out.data_ptr()
        arguments[TILES] = tiles.data_ptr()
        arguments[OPERATION] = operation
        arguments[OTHER] = 0 if other is None else other.data_ptr()
        self._region.run(torch.get_num_threads())
        return out.to(rows.dtype)


def join_small(linears: Iterable[CompiledLinear]) -> None:
    """Move the weights of layers that are smaller than large pages to memory that they share.

    A step reads all weights in the order of the layers.
    """
    group: list[CompiledLinear] = []
    for linear in linears:
        if not has_large_pages(linear.weights.nbytes):
            group.append(linear)
        if sum(each.weights.nbytes for each in group) >= _JOINED_BYTES:
            _move_together(group)
            group = []
    _move_together(group)


def _move_together(linears: list[CompiledLinear]) -> None:
    parts = empty_parts([each.weights.nbytes for each in linears])
    for linear, part in zip(linears, parts, strict=True):
        linear.move(part)
