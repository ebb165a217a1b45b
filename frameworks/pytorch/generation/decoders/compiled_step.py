"""Compute a step by one compiled function, where the decoder's linear layers are compiled GEMMs.

In a step of a small model calls cost more than arithmetic: 25 operators of torch a layer take twice as long as its
GEMMs. A step of many tokens is computed in pieces, one after the other: their activations stay in the CPU's cache,
and the buffers are small.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.generation.decoders.decoder import Decoder
from frameworks.pytorch.generation.decoders.kv_cache import KeyValueCache
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder, LlamaLayer, RootMeanSquareNorm
from frameworks.pytorch.generation.vision.step_images import StepImages
from frameworks.scheduling.steps.sequence import Sequence as TextInProgress
from frameworks.scheduling.steps.sequence import StepPart

# As compiled/attention/cache_rows.py numbers the dtypes; importing it would compile.
_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Pieces of a step have whole tiles of so many rows.
_TILE_ROWS = 8


def compiled_step(decoder: Decoder, cache: KeyValueCache, *, is_idle: bool = False) -> "CompiledStep | None":
    """Return the compiled step of a decoder; None where the decoder or the cache does not allow one.

    Compiling takes seconds, unless the code is in the cache. `is_idle`: the decoder computes nothing yet, so its
    weights may be moved to memory that is read faster.
    """
    if not lanes() or not isinstance(decoder, LlamaDecoder) or cache.shape.dtype not in _DTYPE_CODES:
        return None
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear, join_small

    linears = [linear for layer in decoder.layers for linear in layer.linears] + [decoder.head]
    compiled = [each for each in linears if isinstance(each, CompiledLinear)]
    if len(compiled) < len(linears):
        return None
    if is_idle:
        join_small(compiled)
    return CompiledStep(decoder, compiled, cache)


class CompiledStep:
    """Computes the steps of one decoder. Used by one thread."""

    def __init__(
        self,
        decoder: LlamaDecoder,
        linears: Sequence[Any],
        cache: KeyValueCache,
    ) -> None:
        """`linears`: the CompiledLinears of all layers in the order of LlamaLayer.linears, and the head."""
        from frameworks.pytorch.compiled.amx import amx_registers
        from frameworks.pytorch.compiled.attention import flash_attention
        from frameworks.pytorch.compiled.decoder_step import blocked_states, step, step_arguments
        from frameworks.pytorch.compiled.matmul import gemm, gemm_table, packing
        from frameworks.pytorch.compiled.parallel import NUM_RESERVED, Region
        from frameworks.pytorch.compiled.simd import elementwise
        from frameworks.pytorch.generation.decoders.adapters.compiled import CompiledAdapters

        self._decoder = decoder
        self._hidden_size = linears[0].inputs
        self.max_rows = linears[0].most_rows
        """Tokens of a piece."""
        # torch reads a table of another dtype.
        embedding = decoder.embedding
        self._embedding = None if embedding is None or embedding.dtype not in _DTYPE_CODES else embedding.detach()
        self._cache = cache
        self._linears = linears  # the compiled code has addresses in them
        self._step, self._gemm, self._elementwise = step_arguments, gemm, elementwise
        self._columns, self._registers, self._part_bytes = gemm_table, amx_registers, blocked_states.PIECE_BYTES
        self._num_reserved = NUM_RESERVED
        self._vocabulary = linears[-1].outputs
        self._region = Region(step.ADDRESS, step_arguments.NUM_STEP_ARGUMENTS - NUM_RESERVED)
        first = decoder.layers[0]
        heads = first.query_heads + 2 * first.key_heads
        sizes = {
            "states": self._hidden_size,
            "normed": self._hidden_size,
            "heads": heads * first.head_size,
            "attended": first.query_heads * first.head_size,
            "gated": max(each.outputs for each in linears[2::5]),
        }
        self._writes_blocks = self._gemms_that_write_blocks(linears, first.head_size)
        self._is_blocked = bool(self._writes_blocks.any())
        # Blocks have one row more.
        num_bytes = [4 * (self.max_rows + 1) * size for size in sizes.values()]
        # The GEMMs after attention are computed together, and pack their activations there.
        num_bytes[-1] = max(num_bytes[-1], *(each.packed_bytes(self.max_rows) for each in linears[4::5]))
        num_bytes.append(max(each.tile_bytes(self.max_rows) for each in linears))
        self._buffers = dict(zip((*sizes, "tiles"), packing.empty_parts(num_bytes), strict=True))
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._head_size, self._cache_dtype = first.head_size, _DTYPE_CODES[cache.shape.dtype]
        self._scratch_bytes = step.scratch_bytes(first.head_size, self._cache_dtype)
        self._key_heads = first.key_heads
        self._group, self._max_heads = first.query_heads // first.key_heads, flash_attention.MAX_TILE_ROWS
        # Tokens of a tile, by its heads.
        self._tile_tokens = [0] + [
            step.tile_tokens(heads + 1, first.head_size, self._cache_dtype)
            for heads in range(min(self._group, self._max_heads))
        ]
        self._logits = torch.empty(0, self._vocabulary)
        self._constants = np.array([first.epsilon, first.scale], dtype=np.float32)
        self._norms = _Norms()
        self._final_norm = self._norms.address(decoder.final_norm)
        self._table = _table(decoder.layers, step_arguments, self._norms)
        self._gemms = self._gemm_arguments(linears)
        self.adapters = CompiledAdapters(self._gemms, decoder.adaptable_layers, self.max_rows)
        self._set_constants(first)

    def computes(self, parts: Sequence[StepPart]) -> bool:
        """Return that it computes every step."""
        return True

    def logits(self, parts: Sequence[StepPart], images: StepImages | None = None) -> torch.Tensor:
        """Compute parts of a step with their adapters; return logits, float32 [sum of num_logits, vocabulary].

        `images`: those of the step, if they are not read by layers.

        The tensor is valid until the next step. Raises IndexError for a token that is not in the vocabulary.
        """
        vocabulary = self._decoder.embed.num_embeddings
        rows: list[_Rows] = []
        lowest = num_rows = count = 0
        highest = vocabulary - 1
        for part in parts:
            token_ids = part.token_ids
            rows.append(_Rows(part.sequence, token_ids, part.start, part.num_logits))
            lowest, highest = min(lowest, *token_ids), max(highest, *token_ids)
            num_rows += len(token_ids)
            count += part.num_logits
        if lowest < 0 or highest >= vocabulary:
            # Compiled code would read beyond the table.
            raise IndexError(f"expected tokens from 0 to {vocabulary - 1}, got {lowest} to {highest}")
        if count > len(self._logits):
            self._logits = torch.empty(count, self._vocabulary)
        pieces = [rows] if num_rows <= self.max_rows else _pieces(rows, num_rows, self.max_rows)
        done = first = 0
        for piece in pieces:
            of_piece = None
            if images is not None:
                start, first = first, first + sum([len(each.token_ids) for each in piece])
                of_piece = images.piece(start, first)
            done += self._compute(piece, done, of_piece)
        return self._logits[:count]

    def _compute(self, piece: "Sequence[_Rows]", done: int, images: StepImages | None) -> int:
        """Compute a piece of a step, and return the number of its logits. `done`: logits before them."""
        threads = torch.get_num_threads()
        indices, cosines, sines = self._set_rows(piece, threads, images)
        if len(self._scratch) < threads * self._scratch_bytes:
            self._scratch = torch.empty(threads * self._scratch_bytes, dtype=torch.uint8)
        step, arguments = self._step, self._region.arguments
        arguments[step.SCRATCH] = self._scratch.data_ptr()
        arguments[step.COSINES], arguments[step.SINES] = cosines.ctypes.data, sines.ctypes.data
        count = int(arguments[step.LOGITS])
        gemms = self._gemms
        gemms[:, self._gemm.ROWS] = arguments[step.ROWS]
        gemms[self._writes_blocks, self._gemm.BLOCK_BYTES] = arguments[step.BLOCK_BYTES]
        # The head, and the GEMMs after the attention of the last layer.
        gemms[-self._columns.GEMMS_OF_LAYER :, self._gemm.ROWS] = count
        gemms[-1, self._gemm.OUT] = self._logits.data_ptr() + 4 * self._vocabulary * done
        adapters = self._prepare_adapters(piece) if self.adapters.loaded or self.adapters.present else None
        self._region.prepare(threads)
        gemms[:, : self._num_reserved] = arguments[: self._num_reserved]
        self._region.run(threads)
        del adapters, indices  # the compiled code had their addresses
        return count

    def _prepare_adapters(self, piece: "Sequence[_Rows]") -> Any:
        """Write the adapters of the rows to the table. Return the owners of the addresses in it."""
        has_adapters = bool(self.adapters.present)
        for rows in piece:
            has_adapters = has_adapters or rows.sequence.request.adapter_id != 0
        if not has_adapters:
            return None
        adapter_ids = [rows.sequence.request.adapter_id for rows in piece]
        num_rows = [len(rows.token_ids) for rows in piece]
        return self.adapters.prepare(adapter_ids, num_rows, [rows.num_logits for rows in piece])

    def _set_rows(self, piece: "Sequence[_Rows]", threads: int, images: StepImages | None) -> tuple[Any, Any, Any]:
        """Set the arguments that describe the rows. Return the arrays whose addresses they have: indices int64, and
        cosines and sines float32 [rows, head size / 2].
        """
        token_ids: list[int] = []
        positions: list[int] = []
        first_blocks: list[int] = []
        logit_rows: list[int] = []
        blocks: list[int] = []
        for rows in piece:
            num_rows = len(rows.token_ids)
            token_ids += rows.token_ids
            positions += range(rows.start, rows.start + num_rows)
            first_blocks += [len(blocks)] * num_rows
            blocks += rows.sequence.blocks
            logit_rows += range(len(token_ids) - rows.num_logits, len(token_ids))
        embedding = self._embedding
        if images is not None and images.vectors is not None:
            embedding = None
            states = images.replace_in(self._decoder.embed(torch.tensor(token_ids)).float())
            self._write_states(states.numpy())
        elif embedding is None:
            self._write_states(self._decoder.embed(torch.tensor(token_ids)).float().numpy())
        heads = self._heads_at_once(len(piece), threads)
        tiles, last_tiles = self._tiles(piece, heads)
        step, arguments = self._step, self._region.arguments
        arguments[step.EMBEDDING] = 0 if embedding is None else embedding.data_ptr()
        arguments[step.ROWS], arguments[step.LOGITS] = len(token_ids), len(logit_rows)
        arguments[step.BLOCK_BYTES] = self._block_bytes(len(token_ids))
        arguments[step.TILE_HEADS] = heads
        arguments[step.NUM_TILES], arguments[step.NUM_LAST_TILES] = len(tiles) // 2, len(last_tiles) // 2
        lists = (token_ids, positions, first_blocks, logit_rows, tiles, last_tiles, blocks)
        indices = np.array(list(itertools.chain(*lists)), dtype=np.int64)
        address = indices.ctypes.data
        names = (step.TOKEN_IDS, step.POSITIONS, step.FIRST_BLOCKS, step.LOGIT_ROWS)
        for name, each in zip((*names, step.TILES, step.LAST_TILES, step.BLOCKS), lists, strict=True):
            arguments[name] = address
            address += 8 * len(each)
        rope: Any = positions if images is None or images.positions is None else images.positions
        return indices, *self._decoder.angles(np.asarray(rope, dtype=np.float32))

    def _gemms_that_write_blocks(self, linears: Sequence[Any], head_size: int) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Return which GEMMs write blocks: those of states and heads, if all of them can, or none."""
        columns, inputs_per_block = self._columns, self._registers.INPUTS
        of_layer = np.isin(np.arange(columns.GEMMS_OF_LAYER), (columns.QUERY_KEY_VALUE, columns.OUTPUT, columns.DOWN))
        found = np.append(np.tile(of_layer, len(linears) // columns.GEMMS_OF_LAYER), False)
        writing = [linear for linear, is_in_blocks in zip(linears, found, strict=True) if is_in_blocks]
        if head_size % inputs_per_block or not all(each.writes_blocks for each in writing):
            found[:] = False
        return found

    def _block_bytes(self, rows: int) -> int:
        """Return the bytes from a block of the states to the next; 0 where these are whole rows.

        A block has one row more than its tiles, so that blocks do not start at the same sets of the CPU's cache.
        """
        if not self._is_blocked:
            return 0
        of_tile = self._registers.ROWS
        return (-(-rows // of_tile) * of_tile + 1) * self._part_bytes

    def _write_states(self, states: "np.ndarray[Any, np.dtype[np.float32]]") -> None:
        """Write the states before the first layer, [rows, hidden size]."""
        rows, size = states.shape
        buffer = self._buffers["states"].view(np.float32)
        if not self._is_blocked:
            buffer[: rows * size].reshape(rows, size)[:] = states
            return
        of_part = self._registers.INPUTS
        blocks, of_block = size // of_part, self._block_bytes(rows) // 4
        target = buffer[: blocks * of_block].reshape(blocks, -1, of_part)
        target[:, :rows] = states.reshape(rows, blocks, of_part).transpose(1, 0, 2)

    def _heads_at_once(self, num_parts: int, threads: int) -> int:
        """Return the query heads of a tile: all that have the same keys, or fewer where threads would be idle.

        The result of a head is the same.
        """
        heads: int = min(self._group, self._max_heads)
        tasks = num_parts * self._key_heads
        while heads > 1 and tasks * -(-self._group // heads) < threads:
            heads = -(-heads // 2)
        return heads

    def _tiles(self, piece: "Sequence[_Rows]", heads: int) -> tuple[list[int], list[int]]:
        """Return the first row and the number of tokens of each tile: of all layers but the last, and of the last."""
        tokens = self._tile_tokens[heads]
        tiles: list[int] = []
        last_tiles: list[int] = []
        end = 0
        for rows in piece:
            start, end = end, end + len(rows.token_ids)
            for row in range(start, end, tokens):
                tiles += (row, min(tokens, end - row))
            for row in range(end - rows.num_logits, end, tokens):
                last_tiles += (row, min(tokens, end - row))
        return tiles, last_tiles

    def _gemm_arguments(self, linears: Sequence[Any]) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Return the arguments of each GEMM, with its input, output and epilogue: int64 [GEMMs, GEMM_COLUMNS]."""
        gemm, elementwise = self._gemm, self._elementwise
        states, normed, heads, attended, gated, tiles = (each.ctypes.data for each in self._buffers.values())
        operands = (
            (normed, heads, elementwise.NONE, 0),
            (attended, states, elementwise.ADD, states),
            (normed, gated, elementwise.SILU, 0),
            (normed, gated, elementwise.MUL, gated),
            (gated, states, elementwise.ADD, states),
        )
        table = np.zeros((len(linears), self._columns.GEMM_COLUMNS), dtype=np.int64)
        for index, linear in enumerate(linears):
            own = table[index]
            own[: gemm.NUM_ARGUMENTS] = linear.arguments
            own[self._columns.REGION] = linear.format.address
            x, out, operation, other = (
                operands[index % 5] if index < len(linears) - 1 else (normed, 0, elementwise.NONE, 0)
            )
            own[gemm.X], own[gemm.OUT] = x, out
            own[gemm.OPERATION], own[gemm.OTHER] = operation, other
            own[gemm.TILES] = tiles
            # Norms write whole rows, and attention heads.
            parts = {attended: self._head_size}
            if self._is_blocked:
                parts[normed] = linear.inputs
            own[self._columns.TAKES_PACKED] = x in parts and linear.takes_packed(self.max_rows, parts[x])
        self._join_gemms(table, linears)
        return table

    def _join_gemms(self, table: "np.ndarray[Any, np.dtype[np.int64]]", linears: Sequence[Any]) -> None:
        """Set which GEMMs after attention are computed together."""
        per_layer, gate = self._columns.GEMMS_OF_LAYER, self._columns.GATE
        for index in range(gate, len(linears) - 1, per_layer):
            formats = {each.format for each in linears[index : index + per_layer - gate]}
            if len(formats) == 1:
                table[index, self._columns.FEED_FORWARD] = formats.pop().feed_forward

    def _set_constants(self, layer: LlamaLayer) -> None:
        step, arguments, keys = self._step, self._region.arguments, self._cache.layers[0][0]
        values = self._cache.layers[0][1]
        arguments[step.LAYERS] = len(self._decoder.layers)
        arguments[step.HIDDEN] = self._hidden_size
        arguments[step.QUERY_HEADS], arguments[step.KEY_HEADS] = layer.query_heads, layer.key_heads
        arguments[step.HEAD_SIZE] = layer.head_size
        arguments[step.SCRATCH_BYTES] = self._scratch_bytes
        arguments[step.TABLE] = self._table.ctypes.data
        arguments[step.GEMMS] = self._gemms.ctypes.data
        arguments[step.CONSTANTS] = self._constants.ctypes.data
        arguments[step.EMBEDDING_DTYPE] = 0 if self._embedding is None else _DTYPE_CODES[self._embedding.dtype]
        arguments[step.CACHE_DTYPE] = self._cache_dtype
        arguments[step.FINAL_NORM] = self._final_norm
        arguments[step.CACHE] = keys.data_ptr()
        arguments[step.CACHE_HALF_BYTES] = values.data_ptr() - keys.data_ptr()
        arguments[step.CACHE_LAYER_BYTES] = 2 * arguments[step.CACHE_HALF_BYTES]
        arguments[step.CACHE_BLOCK_BYTES] = keys.stride(0) * keys.element_size()
        for name in ("STATES", "NORMED", "HEADS", "ATTENDED"):
            arguments[getattr(step, name)] = self._buffers[name.lower()].ctypes.data


class _Rows(NamedTuple):
    """Tokens of one sequence from the position `start` on, a row each. Logits are computed of the last `num_logits`."""

    sequence: TextInProgress
    token_ids: list[int]
    start: int
    num_logits: int


def _pieces(rows: list[_Rows], num_rows: int, max_rows: int) -> list[list[_Rows]]:
    """Return the rows of a step in nearly equal pieces of at most `max_rows`: few rows take as long as more.

    `num_rows`: of the step.
    """
    most = -(-num_rows // -(-num_rows // max_rows))
    most = min(max_rows, -(-most // _TILE_ROWS) * _TILE_ROWS)
    pieces: list[list[_Rows]] = [[]]
    free_rows = most
    for sequence, token_ids, start, num_logits in rows:
        done = 0
        while done < len(token_ids):
            if not free_rows:
                pieces.append([])
                free_rows = most
            own = token_ids[done : done + free_rows]
            done, free_rows = done + len(own), free_rows - len(own)
            # The rows with logits are the last ones of the part.
            of_piece = min(len(own), max(0, num_logits - (len(token_ids) - done)))
            pieces[-1].append(_Rows(sequence, own, start + done - len(own), of_piece))
    return pieces


class _Norms:
    """The weights of norms in float32, whose addresses the compiled code has."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []

    def address(self, norm: RootMeanSquareNorm | None) -> int:
        """Return the address of a norm's weight; 0 for no norm."""
        if norm is None:
            return 0
        self._kept.append(norm.weight.detach().float().contiguous())
        return self._kept[-1].data_ptr()


def _table(layers: Sequence[LlamaLayer], step: Any, norms: _Norms) -> "np.ndarray[Any, np.dtype[np.int64]]":
    table = np.zeros((len(layers), step.NUM_COLUMNS), dtype=np.int64)
    for own, layer in zip(table, layers, strict=True):
        own[step.INPUT_NORM] = norms.address(layer.input_norm)
        own[step.MIDDLE_NORM] = norms.address(layer.middle_norm)
        own[step.QUERY_NORM] = norms.address(layer.query_norm)
        own[step.KEY_NORM] = norms.address(layer.key_norm)
        own[step.WINDOW] = layer.window or 0
    return table
