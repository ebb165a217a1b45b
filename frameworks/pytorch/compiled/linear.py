"""Linear layers whose products are compiled. Importing this module compiles them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from frameworks.pytorch.compiled import float32
from frameworks.pytorch.compiled.elementwise import ADD, MUL, NONE, SILU
from frameworks.pytorch.compiled.parallel import NUM_RESERVED, Region
from frameworks.pytorch.compiled.products import (
    BIAS,
    INPUTS,
    NUM_ARGUMENTS,
    OPERATION,
    OTHER,
    OUT,
    OUTPUTS,
    ROWS,
    ROWS_AT_ONCE,
    TILES,
    WEIGHTS,
    X,
)


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """How weights of float32 are packed, and the address of the region that multiplies them.

    `held_bytes`: of outputs and inputs. `tile_bytes`: for the work, of at most ROWS_AT_ONCE rows and inputs.
    """

    name: str
    address: int
    pack: Callable[["np.ndarray[Any, np.dtype[np.float32]]"], "np.ndarray[Any, np.dtype[Any]]"]
    held_bytes: Callable[[int, int], int]
    tile_bytes: Callable[[int, int], int]


FLOAT32 = PackedFormat("float32", float32.ADDRESS, float32.pack, float32.held_bytes, float32.tile_bytes)


class CompiledLinear:
    """A Linear of float32 rows. A row's result is the same whatever rows are computed with it, and on any threads."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, packed_format: PackedFormat = FLOAT32) -> None:
        """`weight`: [outputs, inputs]. `bias`: [outputs]."""
        self.format = packed_format
        self.outputs, self.inputs = weight.shape
        self.weights = torch.from_numpy(packed_format.pack(weight.detach().float().numpy()))
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._region = Region(packed_format.address, NUM_ARGUMENTS - NUM_RESERVED)
        self.arguments = arguments = self._region.arguments
        arguments[INPUTS], arguments[OUTPUTS] = self.inputs, self.outputs
        arguments[WEIGHTS] = self.weights.data_ptr()
        arguments[BIAS] = 0 if self.bias is None else self.bias.data_ptr()

    def tile_bytes(self, rows: int) -> int:
        """Return the bytes that a product of so many rows needs for its work."""
        return self.format.tile_bytes(min(rows, ROWS_AT_ONCE), self.inputs)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows, NONE, None)

    def fused_silu(self, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows, SILU, None)

    def fused_mul(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self._product(rows, MUL, factor)

    def fused_add(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        return self._product(rows, ADD, summand)

    def _product(self, rows: torch.Tensor, operation: int, other: torch.Tensor | None) -> torch.Tensor:
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
