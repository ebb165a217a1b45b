"""A generating model whose logits are a hash of all tokens of the text, which it reads from blocks of a cache.

It takes microseconds, and a token in a wrong block, or one too many, changes all that follow.
"""

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import torch

from frameworks.generation.types import GenerationSpec
from frameworks.pytorch.device.queue import DeviceQueue
from frameworks.pytorch.generation.decoders.graph_steps import GraphSteps
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker, StepLayout
from frameworks.pytorch.generation.sampling.device_sampler import DeviceSampler
from frameworks.pytorch.generation.sampling.sampler import Sampler
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.step.parts import EngineParts
from frameworks.scheduling.steps.blocks import BlockPool, Copy
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.step_cost import StepCost
from frameworks.types import ModelSpec, TensorType, ValueSpec

VOCABULARY_SIZE = 40
CPU = torch.device("cpu")
_MAX_TOKENS = 128
_MODULUS = 10007


class TokenCache:
    """The token of each position, in blocks. One block more takes what has no block."""

    device = CPU
    shape = SimpleNamespace(token_bytes=8)

    def __init__(self, blocks: int) -> None:
        self.tokens = torch.full((blocks + 1, BLOCK_TOKENS), -1, dtype=torch.int64)

    def copy(self, copies: list[Copy]) -> None:
        for source, destination in copies:
            self.tokens[destination] = self.tokens[source]


class HashingDecoder:
    """A Decoder. Its operators have the same shapes for each step of as many decodes."""

    def __init__(self, cache: TokenCache) -> None:
        self._tokens = cache.tokens
        self._columns = torch.arange(VOCABULARY_SIZE) + 1

    def logits(self, layout: StepLayout) -> torch.Tensor:
        tables = layout.tables
        assert tables is not None
        blocks = torch.where(tables.blocks < 0, len(self._tokens) - 1, tables.blocks)
        self._tokens[blocks.long(), tables.offsets.long()] = layout.token_ids.long()
        num_decodes = len(tables.lengths)
        hashes = [self._hash(tables.table, tables.lengths)]
        rows = tables.logit_rows.long()
        if tables.prefills is not None:
            parts = tables.prefills
            counts = parts.counts.tolist()
            table = parts.table.repeat_interleave(parts.counts.long(), 0)
            ends = torch.cat([start + 1 + torch.arange(n) for start, n in zip(parts.starts, counts, strict=True)])
            hashes.append(self._hash(table, ends))
        all_rows = torch.cat(hashes)
        assert len(all_rows) == len(layout.token_ids) or num_decodes == len(layout.token_ids)
        return ((all_rows[rows][:, None] * self._columns * 31) % 97).float() / 7

    def _hash(self, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """int64 [rows], of the first `lengths` tokens in the blocks of each row of the table."""
        positions = torch.arange(table.shape[1] * BLOCK_TOKENS)
        is_own = positions < lengths[:, None]
        # Only what is written is read: the table behind it holds numbers of earlier steps.
        blocks = torch.where(is_own[:, ::BLOCK_TOKENS], table, len(self._tokens) - 1).long()
        tokens = self._tokens[blocks].reshape(len(table), len(positions))
        return torch.where(is_own, (tokens + 2) * (7 * positions + 3), 0).sum(-1) % _MODULUS


class _NoAdapters:
    def in_step(self, parts: object, layout: object) -> AbstractContextManager[None]:
        return nullcontext()


def hashing_model(
    blocks: int, max_sequences: int, max_num_batched_tokens: int, queue: DeviceQueue | None, graphs: Any = None
) -> GeneratingModel:
    """Return a model. `queue`: of its device, which samples; None: the host samples. `graphs`: of its decodes."""
    cache = TokenCache(blocks)
    sampled = SampledIds(CPU, max_sequences)
    decoder: Any = HashingDecoder(cache)
    cached, adapters = cast("Any", cache), cast("Any", _NoAdapters())
    layouts = LayoutMaker(cached, 1, CPU, makes_tables=True, sampled=sampled)
    step = None
    if queue is not None and graphs is not None:
        step = GraphSteps(decoder, graphs, queue, sampled, _MAX_TOKENS // BLOCK_TOKENS)
        step.capture()
    pool = BlockPool(blocks, BLOCK_TOKENS)
    pool.moves_ended = False
    parts = EngineParts(
        PagedRunner(decoder, cached, layouts, adapters, step, queue, sampled),
        StepScheduler(pool, StepCost(max_num_batched_tokens), max_sequences, max_num_batched_tokens),
        Sampler(CPU, VOCABULARY_SIZE),
        cast("Any", None),
        cast("Any", None),
        None,
        None,
        None if queue is None else DeviceSampler(CPU, VOCABULARY_SIZE, sampled, queue),
    )
    return GeneratingModel(parts, _spec(), torch.get_num_threads())


def _spec() -> ModelSpec:
    return ModelSpec(
        framework="pytorch",
        task="generate",
        inputs=(ValueSpec("prompt", TensorType("string", ())),),
        outputs=(ValueSpec("text", TensorType("string", ())),),
        device="cpu",
        dtype="float32",
        memory_bytes=0,
        generation=GenerationSpec(
            max_context_tokens=_MAX_TOKENS,
            vocabulary_size=VOCABULARY_SIZE,
            eos_token_ids=frozenset(),
            has_chat_template=False,
        ),
    )
