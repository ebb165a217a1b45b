"""Sequences with blocks in any order, their attention, and the same by torch over contiguous keys and values."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.device_attention import DeviceAttention
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheShape, KeyValueCache
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker, StepLayout
from frameworks.scheduling.steps.sequence import Sequence, StepPart
from tests.support.kernel_device import KERNEL_DEVICE

CPU = torch.device("cpu")
BLOCKS = 64
LAYERS = 2
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Part:
    """A sequence with `start` tokens in the cache and `num_tokens` to compute."""

    start: int
    num_tokens: int


@dataclass(frozen=True)
class Form:
    heads: int = 2
    group: int = 2
    head_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    softcap: float | None = None
    is_transposed: bool = True
    has_kernels: bool = False
    """Kernels of the device: on CUDA, or by Triton's interpreter."""

    @property
    def device(self) -> torch.device:
        return torch.device(KERNEL_DEVICE) if self.has_kernels else CPU


class Case:
    """Sequences with blocks in any order, in a cache full of old values."""

    def __init__(self, parts: list[Part], form: Form, order: list[int], seed: int = 0) -> None:
        """`order`: the order in which blocks are allocated."""
        self.form = form
        self._numbers = torch.Generator().manual_seed(seed)
        shape = CacheShape(LAYERS, form.heads, form.head_size, form.dtype)
        is_transposed = form.is_transposed and not form.has_kernels
        self.cache = KeyValueCache(shape, BLOCKS, form.device, is_transposed=is_transposed)
        for keys, values in self.cache.layers:
            # The kernels read nothing else than what sequences wrote.
            keys.fill_(torch.nan if form.has_kernels else 30)
            values.fill_(torch.inf if form.has_kernels else 1000)
        parts = sorted(parts, key=lambda part: part.num_tokens > 1)
        self.keys = [self._random(part.start + part.num_tokens, form.heads) for part in parts]
        self.values = [self._random(part.start + part.num_tokens, form.heads) for part in parts]
        self.queries = [self._random(part.num_tokens, form.heads * form.group) for part in parts]
        free = iter(order)
        self.parts = [self._placed(number, part, free) for number, part in enumerate(parts)]

    def ours(self, layer: int = 1, scale: float | None = None) -> list[torch.Tensor]:
        device, has_kernels = self.form.device, self.form.has_kernels
        blocks = BlockAttention(
            self.cache,
            self.form.heads * self.form.group,
            self.form.head_size**-0.5,
            DeviceAttention(self.cache, self.form.heads * self.form.group, device) if has_kernels else None,
        )
        layouts = LayoutMaker(self.cache, self.form.group, device, makes_tables=has_kernels)
        layout = blocks.layout = layouts.make(self.parts)
        own = [slice(part.start, part.start + part.num_tokens) for part in self.parts]
        seen = blocks(
            layer,
            filled(self.queries, layout).to(device),
            filled(
                [
                    torch.cat((keys[at], values[at]), 1)
                    for keys, values, at in zip(self.keys, self.values, own, strict=True)
                ],
                layout,
            ).to(device),
            self.form.window,
            scale,
            self.form.softcap,
        )
        assert seen.dtype == self.form.dtype
        assert not seen[layout.num_tokens :].any(), "what is no token's is nothing, not even NaN"
        return list(torch.split(seen[: layout.num_tokens].cpu(), [part.num_tokens for part in self.parts]))

    def expected(self, scale: float | None = None) -> list[torch.Tensor]:
        """Return torch's result, sequence by sequence, in double precision."""
        return [self._dense(number, scale) for number in range(len(self.parts))]

    def _dense(self, number: int, scale: float | None) -> torch.Tensor:
        part, form = self.parts[number], self.form
        query, key, value = (
            states[number].double().transpose(0, 1) for states in (self.queries, self.keys, self.values)
        )
        key, value = key.repeat_interleave(form.group, 0), value.repeat_interleave(form.group, 0)
        own = torch.arange(part.start, part.start + part.num_tokens)[:, None]
        other = torch.arange(part.start + part.num_tokens)
        mask = (other <= own) & (other > own - (form.window or 10**6))
        if form.softcap is None:
            seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        else:
            products = query @ key.transpose(-1, -2) * (form.head_size**-0.5 if scale is None else scale)
            capped = form.softcap * torch.tanh(products / form.softcap)
            seen = torch.softmax(capped.masked_fill(~mask, -torch.inf), -1) @ value
        return seen.transpose(0, 1)

    def _placed(self, number: int, part: Part, free: Iterator[int]) -> StepPart:
        length = part.start + part.num_tokens
        sequence = Sequence(SequenceRequest(number, (1,) * length, 1, Sampling(), priority=5), 0.0)
        sequence.blocks = [next(free) for _ in range(-(-length // BLOCK_TOKENS))]
        for keys, values in self.cache.layers:
            for position in range(part.start):
                block, at = sequence.blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS
                keys[block, :, at] = self.keys[number][position]
                values[block, :, at] = self.values[number][position]
        return StepPart(sequence, part.start, part.num_tokens)

    def _random(self, tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, self.form.head_size, generator=self._numbers).to(self.form.dtype)


def filled(states: list[torch.Tensor], layout: StepLayout) -> torch.Tensor:
    """Return the rows of the step's tokens, followed by padding rows of arbitrary values."""
    rows = len(layout.positions)
    return torch.cat([*states, torch.full((rows - layout.num_tokens, *states[0].shape[1:]), torch.nan)]).to(
        states[0].dtype
    )


def check(case: Case, scale: float | None = None) -> None:
    for ours, expected in zip(case.ours(scale=scale), case.expected(scale), strict=True):
        assert (ours.double() - expected).abs().max() < TOLERANCE[case.form.dtype] * max(
            1.0, float(expected.abs().max())
        )


MIXED = [Part(0, 1), Part(31, 1), Part(32, 1), Part(100, 1), Part(0, 40), Part(0, 41), Part(20, 30), Part(64, 2)]
IN_ROW = list(range(BLOCKS))
SCATTERED = [*range(0, BLOCKS, 7), *(block for block in range(BLOCKS) if block % 7)]
