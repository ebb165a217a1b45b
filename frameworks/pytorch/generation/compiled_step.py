"""Compute a step of few tokens by one compiled function, where the decoder's layers have compiled products.

A step of a small model is calls rather than arithmetic: 25 operators of torch a layer take twice as long as its
products. Long prompts are computed layer by layer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from frameworks.generation.sequence import StepPart
from frameworks.pytorch.compiled.vectors import lanes
from frameworks.pytorch.generation.decoder import Decoder
from frameworks.pytorch.generation.kv_cache import BLOCK_TOKENS, KeyValueCache
from frameworks.pytorch.generation.llama import LlamaDecoder, LlamaLayer, RootMeanSquareNorm

# As compiled/rows.py numbers them; importing it would compile.
_CACHE_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_ROWS = 128
"""Tokens of a step. Above it, the operators of torch take a small share of the time."""
_PROMPT_TOKENS = 17
MAX_PROMPT_KEYS = 8_000
"""Keys that the tokens of prompts see together: each token reads them alone, and torch's attention in blocks. Parts of
fewer than _PROMPT_TOKENS tokens do not count; proposed tokens are such parts.
"""


def compiled_step(decoder: Decoder, cache: KeyValueCache, max_tokens: int) -> "CompiledStep | None":
    """Return what computes the steps of few tokens; None where the decoder or the cache does not allow it.

    `max_tokens`: of a sequence. Compiling takes seconds, unless the code is in the cache.
    """
    if not lanes() or not isinstance(decoder, LlamaDecoder) or cache.shape.dtype not in _CACHE_KINDS:
        return None
    from frameworks.pytorch.compiled.linear import CompiledLinear

    linears = [linear for layer in decoder.layers for linear in layer.linears] + [decoder.head]
    compiled = [each for each in linears if isinstance(each, CompiledLinear)]
    return CompiledStep(decoder, compiled, cache, max_tokens) if len(compiled) == len(linears) else None


class CompiledStep:
    """Computes steps of one decoder. Used by one thread."""

    def __init__(
        self,
        decoder: LlamaDecoder,
        linears: Sequence[Any],
        cache: KeyValueCache,
        max_tokens: int,
    ) -> None:
        """`linears`: the CompiledLinears of all layers in the order of LlamaLayer.linears, and the head."""
        from frameworks.pytorch.compiled import elementwise, products, step, step_table
        from frameworks.pytorch.compiled.parallel import NUM_RESERVED, Region
        from frameworks.pytorch.generation.adapters.compiled import CompiledAdapters

        self._decoder = decoder
        self._hidden_size = linears[0].inputs
        # A table of another type is read by torch.
        embedding = decoder.embedding
        self._embedding = embedding.detach() if embedding is not None and embedding.dtype == torch.float32 else None
        self._cache = cache
        self._linears = linears  # the compiled code has addresses in them
        self._step, self._products, self._operations = step, products, elementwise
        self._columns = step_table
        self._num_reserved = NUM_RESERVED
        self._max_tokens = max_tokens
        self._vocabulary = linears[-1].outputs
        self._region = Region(step.ADDRESS, step.NUM_STEP_ARGUMENTS - NUM_RESERVED)
        first = decoder.layers[0]
        heads = first.query_heads + 2 * first.key_heads
        sizes = {
            "states": self._hidden_size,
            "normed": self._hidden_size,
            "heads": heads * first.head_size,
            "seen": first.query_heads * first.head_size,
            "gated": max(each.outputs for each in linears[2::5]),
        }
        self._buffers = {name: np.empty((MAX_ROWS, size), dtype=np.float32) for name, size in sizes.items()}
        self._buffers["tiles"] = np.empty(max(each.tile_bytes(MAX_ROWS) for each in linears) // 4, dtype=np.float32)
        self._scores = np.empty(0, dtype=np.float32)
        self._logits = torch.empty(0, self._vocabulary)
        self._numbers = np.array([first.epsilon, first.scale], dtype=np.float32)
        self._norms = _Norms()
        self._final_norm = self._norms.address(decoder.final_norm)
        self._table = _table(decoder.layers, step, self._norms)
        self._arguments_of_products = self._products_table(linears)
        self.adapters = CompiledAdapters(self._arguments_of_products, decoder.adaptable_layers, MAX_ROWS)
        self._set_constants(first)

    def takes(self, parts: Sequence[StepPart]) -> bool:
        """Return whether a step of these parts is computed here: one of few tokens."""
        tokens = keys = 0
        for part in parts:
            count = part.num_tokens
            tokens += count
            if count >= _PROMPT_TOKENS:
                keys += count * part.start + count * (count + 1) // 2
            if tokens > MAX_ROWS or keys > MAX_PROMPT_KEYS:
                return False
        return True

    def logits(self, parts: Sequence[StepPart]) -> torch.Tensor:
        """As Decoder.logits of these parts with their adapters, float32. The tensor is valid until the next step.

        Raises IndexError.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        first_blocks: list[int] = []
        logit_rows: list[int] = []
        blocks: list[int] = []
        for part in parts:
            token_ids += part.token_ids
            positions += range(part.start, part.start + part.num_tokens)
            first_blocks += [len(blocks)] * part.num_tokens
            blocks += part.sequence.blocks
            logit_rows += range(len(token_ids) - part.num_logits, len(token_ids))
        vocabulary = self._decoder.embed.num_embeddings
        if min(token_ids) < 0 or max(token_ids) >= vocabulary:
            # Compiled code would read beyond the table.
            raise IndexError(f"expected tokens from 0 to {vocabulary - 1}, got {min(token_ids)} to {max(token_ids)}")
        rows, count = len(token_ids), len(logit_rows)
        threads = torch.get_num_threads()
        if count > len(self._logits):
            self._set_logits(count)
        if len(self._scores) < threads * self._max_tokens:
            self._scores = np.empty(threads * self._max_tokens, dtype=np.float32)
        if self._embedding is None:
            states = self._decoder.embed(torch.tensor(token_ids)).float()
            self._buffers["states"][:rows] = states.numpy()
        numbers = np.array(token_ids + positions + first_blocks + logit_rows + blocks, dtype=np.int64)
        cosines, sines = self._decoder.angles(np.array(positions, dtype=np.float32))
        step, arguments = self._step, self._region.arguments
        address = numbers.ctypes.data
        arguments[step.ROWS], arguments[step.LOGITS] = rows, count
        arguments[step.TOKEN_IDS] = address
        arguments[step.POSITIONS] = address + 8 * rows
        arguments[step.FIRST_BLOCKS] = address + 16 * rows
        arguments[step.LOGIT_ROWS] = address + 24 * rows
        arguments[step.BLOCKS] = address + 24 * rows + 8 * count
        arguments[step.COSINES], arguments[step.SINES] = cosines.ctypes.data, sines.ctypes.data
        arguments[step.SCORES] = self._scores.ctypes.data
        products = self._arguments_of_products
        products[:, self._products.ROWS] = rows
        products[-1, self._products.ROWS] = count
        adapters = self.adapters.prepare(parts, rows)
        self._region.prepare(threads)
        products[:, : self._num_reserved] = arguments[: self._num_reserved]
        self._region.run(threads)
        del adapters  # their weights were read until here
        return self._logits[:count]

    def _set_logits(self, count: int) -> None:
        self._logits = torch.empty(count, self._vocabulary)
        self._arguments_of_products[-1, self._products.OUT] = self._logits.data_ptr()

    def _products_table(self, linears: Sequence[Any]) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Return the arguments of each product, with what it reads and writes."""
        products, operations = self._products, self._operations
        states, normed, heads, seen, gated, tiles = (each.ctypes.data for each in self._buffers.values())
        places = (
            (normed, heads, operations.NONE, 0),
            (seen, states, operations.ADD, states),
            (normed, gated, operations.SILU, 0),
            (normed, gated, operations.MUL, gated),
            (gated, states, operations.ADD, states),
        )
        table = np.zeros((len(linears), self._columns.PRODUCT_COLUMNS), dtype=np.int64)
        for index, linear in enumerate(linears):
            own = table[index]
            own[: products.NUM_ARGUMENTS] = linear.arguments
            own[self._columns.REGION] = linear.format.address
            x, out, operation, other = (
                places[index % 5] if index < len(linears) - 1 else (normed, 0, operations.NONE, 0)
            )
            own[products.X], own[products.OUT] = x, out
            own[products.OPERATION], own[products.OTHER] = operation, other
            own[products.TILES] = tiles
        return table

    def _set_constants(self, layer: LlamaLayer) -> None:
        step, arguments, keys = self._step, self._region.arguments, self._cache.layers[0][0]
        values = self._cache.layers[0][1]
        arguments[step.LAYERS] = len(self._decoder.layers)
        arguments[step.HIDDEN] = self._hidden_size
        arguments[step.QUERY_HEADS], arguments[step.KEY_HEADS] = layer.query_heads, layer.key_heads
        arguments[step.HEAD_SIZE] = layer.head_size
        arguments[step.MAX_TOKENS] = self._max_tokens
        arguments[step.BLOCK_TOKENS] = BLOCK_TOKENS
        arguments[step.TABLE] = self._table.ctypes.data
        arguments[step.PRODUCTS] = self._arguments_of_products.ctypes.data
        arguments[step.NUMBERS] = self._numbers.ctypes.data
        arguments[step.EMBEDDING] = 0 if self._embedding is None else self._embedding.data_ptr()
        arguments[step.CACHE_KIND] = _CACHE_KINDS[self._cache.shape.dtype]
        arguments[step.FINAL_NORM] = self._final_norm
        arguments[step.CACHE] = keys.data_ptr()
        arguments[step.CACHE_HALF_BYTES] = values.data_ptr() - keys.data_ptr()
        arguments[step.CACHE_LAYER_BYTES] = 2 * arguments[step.CACHE_HALF_BYTES]
        arguments[step.CACHE_BLOCK_BYTES] = keys.stride(0) * keys.element_size()
        for name in ("STATES", "NORMED", "HEADS", "SEEN"):
            arguments[getattr(step, name)] = self._buffers[name.lower()].ctypes.data


class _Norms:
    """Addresses of the weights of norms, in float32. Keeps them."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []

    def address(self, norm: RootMeanSquareNorm | None) -> int:
        """Return 0 for none."""
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
