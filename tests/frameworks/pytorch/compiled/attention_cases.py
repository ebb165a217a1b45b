"""Sequences of one key head, whose attention is computed by compiled code and by torch."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import pytest
import torch
from numba import types

from frameworks.pytorch.compiled.cpu_features import has_amx
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from tests.frameworks.pytorch.compiled.layers import random
from tests.support.amx_tiles import AmxTiles

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
BLOCKS = 36
IN_ROW = list(range(BLOCKS))
"""All blocks in the order of their numbers."""
_SCALE = 0.25
TILES = AmxTiles()
_kept: list[Any] = []


@dataclass(frozen=True)
class Form:
    """`group`: query heads for a key head, of which `heads` are computed at once. `by_tiles`: by AMX, for
    bfloat16; where the CPU has none, in NumPy. `sees_later`: whether a token sees those behind it, as in encoders; then
    `window` is of each side, without the token.
    """

    head_size: int = 16
    group: int = 2
    heads: int = 2
    dtype: torch.dtype = torch.float32
    window: int = 0
    by_tiles: bool = False
    sees_later: bool = False

    def visible(self, position: int, tokens: int, length: int) -> tuple[int, int, int, int]:
        """Return what tokens from a position on see, as `flash_attention.attend_to_keys`."""
        if not self.sees_later:
            return position + 1, 1, self.window, position + tokens
        return (position + 1 + self.window, 1, 2 * self.window + 1, length) if self.window else (length, 0, 0, length)


class Text:
    """A sequence of one key head, in a KV cache of two, and its queries."""

    def __init__(self, start: int, count: int, form: Form, order: list[int], seed: int = 0) -> None:
        """`order`: the block table. All other elements of the cache are large."""
        self.start, self.form = start, form
        length = start + count
        self.queries = random(count, form.group, form.head_size, seed=seed)
        self.keys, self.values = (
            random(length, form.head_size, seed=seed + number).to(form.dtype) for number in (1, 2)
        )
        self.cache = torch.full((2, BLOCKS, 2, BLOCK_TOKENS * form.head_size), 1e4, dtype=form.dtype)
        self.blocks = torch.tensor(order[: -(-length // BLOCK_TOKENS)])
        # As KeyValueCache has them on a CPU.
        keys = self.cache[0].view(BLOCKS, 2, form.head_size, BLOCK_TOKENS).transpose(2, 3)
        values = self.cache[1].view(BLOCKS, 2, BLOCK_TOKENS, form.head_size)
        for states, given_ in ((keys, self.keys), (values, self.values)):
            for position, row in enumerate(given_):
                states[order[position // BLOCK_TOKENS], 1, position % BLOCK_TOKENS] = row

    def found(self, first: int, tokens: int) -> torch.Tensor:
        """Return what one tile computes: [tokens, heads of a group, head size]."""
        form = self.form
        attention, region = compiled(form.by_tiles)
        out = torch.full_like(self.queries, torch.nan)
        scratch = torch.full((attention.scratch_bytes(form.head_size, KINDS[form.dtype]),), 255, dtype=torch.uint8)
        token_bytes = 4 * form.group * form.head_size
        keys, values = (states[0, 1].data_ptr() for states in self.cache)
        for head in range(0, form.group, form.heads):
            offset = first * token_bytes + 4 * head * form.head_size
            region.arguments[3:] = [
                self.queries.data_ptr() + offset,
                out.data_ptr() + offset,
                scratch.data_ptr(),
                *(tokens, min(form.heads, form.group - head)),
                *form.visible(self.start + first, tokens, len(self.keys)),
                *(form.head_size, token_bytes, token_bytes),
                *(keys, values, self.blocks.data_ptr()),
                *(self.cache.stride(1) * self.cache.element_size(), KINDS[form.dtype]),
            ]
            region.run(1)
        return out[first : first + tokens]

    def whole(self) -> torch.Tensor:
        """Return all rows, computed in the tiles of a step."""
        form, count = self.form, len(self.queries)
        tokens = compiled(form.by_tiles)[0].tile_tokens(form.heads, form.head_size, KINDS[form.dtype])
        return torch.cat([self.found(first, min(tokens, count - first)) for first in range(0, count, tokens)])

    def expected(self) -> torch.Tensor:
        """Return torch's result in float64. Queries are rounded to bfloat16 for AMX."""
        queries = _SCALE * self.queries.double()
        if self.form.by_tiles:
            exponents = self.queries * (torch.tensor(_SCALE) * math.log2(math.e))
            queries = exponents.bfloat16().double() * math.log(2)
        queries = queries.transpose(0, 1)
        own = torch.arange(self.start, len(self.keys))[:, None]
        other = torch.arange(len(self.keys))
        mask = (other <= own) & (other > own - (self.form.window or len(self.keys)))
        if self.form.sees_later:
            mask = (other - own).abs() <= (self.form.window or len(self.keys))
        keys, values = (each.double().expand(self.form.group, -1, -1) for each in (self.keys, self.values))
        seen = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1)
        return seen.transpose(0, 1)


@cache
def compiled(by_tiles: bool) -> tuple[Any, Any]:
    """Return the module, and a region that attends once."""
    from frameworks.pytorch.compiled.attention import flash_attention
    from frameworks.pytorch.compiled.jit import address_of
    from frameworks.pytorch.compiled.parallel import Region

    module: Any = flash_attention
    attend: Any = flash_attention.attend_to_keys
    if by_tiles:
        from frameworks.pytorch.compiled.attention import amx_attention

        module, attend = amx_attention, amx_attention.attend_to_keys

    def attend_once(arguments: Any) -> None:
        attend(
            arguments[3],
            arguments[4],
            arguments[5],
            (arguments[6], arguments[7], (arguments[8], arguments[9], arguments[10], arguments[11]), 0),
            (arguments[12], arguments[13], arguments[14]),
            (arguments[15], arguments[16], arguments[17], arguments[18], arguments[19]),
            _SCALE,
        )

    # Not cached: the code contains addresses of the functions that stand in for the instructions.
    if by_tiles and not has_amx():
        from frameworks.pytorch.compiled.amx import amx_registers

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(amx_registers, "function", TILES.function)
            made = numba.cfunc(types.void(types.CPointer(types.int64)), error_model="numpy")(attend_once)
        _kept.append(made)
        return module, Region(made.address, 17)
    return module, Region(address_of(attend_once), 17)
