"""Run the compiled layers of a model on the rows of some texts."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from frameworks.types import Array

if TYPE_CHECKING:
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear
    from frameworks.pytorch.encoder_layers.embeddings import Embeddings

_MAX_ROWS, _MAX_TEXTS = 512, 32
"""Tokens and texts of a piece: so many activations stay in the CPU's cache. A longer text is a piece of its own."""
_MAX_BLOCKS = 64
"""Blocks of keys of a piece, of texts that have such bounds."""


@dataclass(frozen=True, slots=True)
class Layer:
    """`linears`: in the order of the arguments' GEMMs; None for one that it does not have. `norms`: addresses of weight
    and bias, in the order of LayerForm. `window`: tokens that a token sees on each side; 0 for all.
    """

    linears: "tuple[CompiledLinear | None, ...]"
    norms: tuple[int, ...]
    window: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The layers of a model. `sizes`: of a state, heads, size of a head. `operation`: of an epilogue, the
    activation function. `bias`: of the distances in texts of so many tokens, float32 [heads, 2 * tokens - 1], which are
    added to the scores; None without. `rounds_rows`: whether activations of the GEMMs are bfloat16.
    """

    layers: Sequence[Layer]
    sizes: tuple[int, int, int]
    epsilon: float
    scale: float
    operation: int
    bias: Callable[[int], torch.Tensor] | None = None
    rounds_rows: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens whose embeddings are the states before the layers. `rows`: int64 [3, tokens], of the tables."""

    embeddings: "Embeddings"
    rows: Array

    def __getitem__(self, part: slice) -> "Tokens":
        return Tokens(self.embeddings, self.rows[:, part])


class Runner:
    """The buffers of a run. Used by one thread at a time."""

    def __init__(self, plan: Plan) -> None:
        from frameworks.pytorch.compiled.attention.cache_rows import BFLOAT16, FLOAT32
        from frameworks.pytorch.compiled.cpu_features import has_amx
        from frameworks.pytorch.compiled.encoder_step import encoder, encoder_arguments
        from frameworks.pytorch.compiled.matmul import gemm
        from frameworks.pytorch.compiled.parallel import NUM_RESERVED, Region

        self._plan, self._names, self._gemm, self._num_reserved = plan, encoder_arguments, gemm, NUM_RESERVED
        self._region = Region(encoder.ADDRESS, encoder_arguments.NUM_ENCODER_ARGUMENTS - NUM_RESERVED)
        head_size = plan.sizes[2]
        # AMX multiplies bfloat16; vectors are as fast with float32.
        is_narrow = has_amx() and plan.rounds_rows and plan.bias is None and head_size % 32 == 0
        self._dtype = BFLOAT16 if is_narrow else FLOAT32
        self._scratch_bytes = encoder.scratch_bytes(head_size, self._dtype)
        self._tile_tokens = encoder.tile_tokens(1, head_size, self._dtype)
        self._constants = np.array([plan.epsilon, plan.scale, 0], dtype=np.float32)
        self._table = np.zeros((len(plan.layers), encoder_arguments.NUM_COLUMNS), dtype=np.int64)
        for own, layer in zip(self._table, plan.layers, strict=True):
            own[: len(layer.norms)] = layer.norms
            own[encoder_arguments.WINDOW] = layer.window
        self._layers = range(len(plan.layers))
        self._rows = self._blocks = self._threads = 0
        self._buffers: dict[str, Any] = {}
        self._gemms: Any = None
        self._bias: torch.Tensor | None = None

    @property
    def is_small(self) -> bool:
        """Whether its buffers are not larger than those of most runs: a long text has larger ones."""
        return self._rows <= _MAX_ROWS and self._blocks <= _MAX_BLOCKS

    def compute(
        self,
        given: torch.Tensor | Tokens,
        out: torch.Tensor,
        starts: list[int],
        angles: Sequence[Any] = (),
        layers: range | None = None,
    ) -> None:
        """Write the states of texts, float32 [rows, hidden size], after some layers; None: after all.

        `given`: the states before them, or tokens.
        """
        self._layers = range(len(self._plan.layers)) if layers is None else layers
        of_layers = [None if each is None else [_halves(part) for part in each] for each in angles]
        for texts in _pieces(starts):
            first, end = texts[0], texts[-1]
            part = given[first:end]
            out[first:end] = self._compute(part, [each - first for each in texts], of_layers, first)

    def _compute(self, given: torch.Tensor | Tokens, starts: list[int], angles: list[Any], first: int) -> torch.Tensor:
        rows, size = starts[-1], self._plan.sizes[0]
        names, arguments = self._names, self._region.arguments
        threads = torch.get_num_threads()
        tiles, blocks = self._tiles_and_blocks(starts)
        self._reserve(rows, len(blocks), threads)
        tiles[:, names.FIRST_BLOCK] = self._buffers["order"].ctypes.data + 8 * tiles[:, names.FIRST_BLOCK]
        states = torch.from_numpy(self._buffers["states"][: rows * size]).view(rows, size)
        if isinstance(given, torch.Tensor):
            states.copy_(given)
            arguments[names.EMBEDDINGS] = 0
        else:
            self._constants[2] = given.embeddings.epsilon
            arguments[names.EMBEDDINGS] = given.embeddings.addresses.ctypes.data
            own = (each.ctypes.data for each in given.rows)
            arguments[names.IDS], arguments[names.POSITIONS], arguments[names.TYPES] = own
        for layer, of_layer in enumerate(angles, self._layers.start):
            if of_layer is not None:
                offset = 4 * first * of_layer[0].shape[1]
                self._table[layer, names.COSINES] = of_layer[0].data_ptr() + offset
                self._table[layer, names.SINES] = of_layer[1].data_ptr() + offset
        arguments[names.LAYERS] = len(self._layers)
        arguments[names.TABLE] = self._table[self._layers.start :].ctypes.data
        arguments[names.GEMMS] = self._gemms[self._layers.start * names.GEMMS_OF_LAYER :].ctypes.data
        arguments[names.ROWS] = rows
        arguments[names.NUM_TILES], arguments[names.NUM_BLOCKS] = len(tiles), len(blocks)
        arguments[names.TILES], arguments[names.BLOCKS] = tiles.ctypes.data, blocks.ctypes.data
        self._gemms[:, self._gemm.ROWS] = rows
        self._region.prepare(threads)
        self._gemms[:, : self._num_reserved] = arguments[: self._num_reserved]
        self._region.run(threads)
        return states

    def _tiles_and_blocks(self, starts: list[int]) -> tuple[Any, Any]:
        """Return the tiles and the blocks of texts, as encoder_arguments.py has them. FIRST_BLOCK is the index."""
        from frameworks.pytorch.compiled.attention.attention_tiles import KEYS

        tiles: list[tuple[int, ...]] = []
        blocks: list[tuple[int, int]] = []
        for start, end in itertools.pairwise(starts):
            index = len(blocks)
            blocks += [(row, min(KEYS, end - row)) for row in range(start, end, KEYS)]
            tiles += [
                (row, min(self._tile_tokens, end - row), row - start, end - start, index)
                for row in range(start, end, self._tile_tokens)
            ]
        return np.array(tiles, dtype=np.int64), np.array(blocks, dtype=np.int64)

    def _reserve(self, rows: int, blocks: int, threads: int) -> None:
        """Have buffers for so many rows and blocks of keys."""
        from frameworks.pytorch.compiled.attention.attention_tiles import KEYS
        from frameworks.pytorch.compiled.matmul.packing import empty_parts

        if rows <= self._rows and blocks <= self._blocks and threads <= self._threads:
            return
        plan, names = self._plan, self._names
        size, num_heads, head_size = plan.sizes
        attended = num_heads * head_size
        self._rows, self._blocks = max(rows, self._rows, _MAX_ROWS), max(blocks, self._blocks, _MAX_BLOCKS)
        self._threads = max(threads, self._threads)
        linears = [each for layer in plan.layers for each in layer.linears if each is not None]
        floats = {
            "states": self._rows * size,
            "normed": self._rows * size,
            "heads": self._rows * 3 * attended,
            "attended": self._rows * attended,
            "gated": self._rows * max(each.linears[2].outputs for each in plan.layers if each.linears[2] is not None),
            "cache": self._blocks * 2 * KEYS * attended,
            "scratch": self._threads * self._scratch_bytes // 4,
            "tiles": max(each.tile_bytes(self._rows) for each in linears) // 4,
        }
        parts = empty_parts([4 * each for each in floats.values()])
        self._buffers = {name: part.view(np.float32) for name, part in zip(floats, parts, strict=True)}
        self._buffers["order"] = np.arange(self._blocks, dtype=np.int64)
        self._gemms = self._gemm_arguments()
        arguments = self._region.arguments
        for name in ("states", "normed", "heads", "attended", "cache", "scratch"):
            arguments[getattr(names, name.upper())] = self._buffers[name].ctypes.data
        if plan.bias is not None:
            self._bias = plan.bias(self._rows)
            arguments[names.LONGEST], arguments[names.BIAS] = self._rows, self._bias.data_ptr()
        arguments[names.HIDDEN] = size
        arguments[names.NUM_HEADS], arguments[names.HEAD_SIZE] = num_heads, head_size
        arguments[names.SCRATCH_BYTES], arguments[names.CACHE_DTYPE] = self._scratch_bytes, self._dtype
        arguments[names.CONSTANTS] = self._constants.ctypes.data

    def _gemm_arguments(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Return the arguments of each GEMM, with its input, output and epilogue: int64 [GEMMs, GEMM_COLUMNS]."""
        from frameworks.pytorch.compiled.simd.elementwise import ADD, MUL, NONE

        names, gemm, plan = self._names, self._gemm, self._plan
        states, normed, heads, attended, gated = (
            self._buffers[name].ctypes.data for name in ("states", "normed", "heads", "attended", "gated")
        )
        table = np.zeros((len(plan.layers), names.GEMMS_OF_LAYER, names.GEMM_COLUMNS), dtype=np.int64)
        for of_layer, layer in zip(table, plan.layers, strict=True):
            before_attention = normed if layer.norms[names.ATTENTION_NORM] else states
            before_feed_forward = normed if layer.norms[names.FEED_FORWARD_NORM] else states
            operands = (
                (before_attention, heads, NONE, 0),
                (attended, states, ADD, states),
                (before_feed_forward, gated, plan.operation, 0),
                (before_feed_forward, gated, MUL, gated),
                (gated, states, ADD, states),
            )
            for own, linear, (x, out, operation, other) in zip(of_layer, layer.linears, operands, strict=True):
                if linear is None:
                    continue
                own[: gemm.NUM_ARGUMENTS] = linear.arguments
                own[names.REGION] = linear.format.address
                own[gemm.X], own[gemm.OUT], own[gemm.OPERATION], own[gemm.OTHER] = x, out, operation, other
                own[gemm.TILES] = self._buffers["tiles"].ctypes.data
        return table.reshape(-1, names.GEMM_COLUMNS)


def _pieces(starts: list[int]) -> Iterator[list[int]]:
    """Yield the starts of the texts of each piece, and the end of its last."""
    piece = [starts[0]]
    for end in starts[1:]:
        if len(piece) > 1 and (end - piece[0] > _MAX_ROWS or len(piece) > _MAX_TEXTS):
            # Texts may have no tokens.
            if piece[-1] > piece[0]:
                yield piece
            piece = [piece[-1]]
        piece.append(end)
    if piece[-1] > piece[0]:
        yield piece


def _halves(angles: torch.Tensor) -> torch.Tensor:
    """Return half of cosines or sines [1, rows, head size], whose halves are equal: float32 [rows, half]."""
    return angles[0, :, : angles.shape[-1] // 2].float().contiguous()
