"""Load the part of a model of one rank for paged attention, and check the logits of all ranks together.

Every rank runs this code, in the same order: the checks compute steps together. `meet` waits for the other ranks
where a part of the load may take longer there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.progress import phase
from frameworks.pytorch import device_kernels
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.device_attention import DeviceAttention
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.llama import LlamaDecoder
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.decoders.step_layout import LayoutMaker
from frameworks.pytorch.generation.loading.paged_loading import make_cache, make_decoder
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.step.shape import NotPaged, read_shape
from frameworks.pytorch.generation.step.trial import Trial
from frameworks.pytorch.generation.tensor_parallel.parallel_linears import join_model, join_ranks
from frameworks.pytorch.generation.tensor_parallel.rank_group import RankGroup
from frameworks.pytorch.generation.tensor_parallel.shard_weights import load_shard
from frameworks.pytorch.generation.weights.linear_makers import LinearMaker, linear_weights
from frameworks.pytorch.loader import DTYPES
from frameworks.types import ProductTrial


@dataclass(frozen=True, slots=True)
class LoadedShard:
    """The part of one rank. `memory_bytes`: of its weights and of its cache. `products`: as of ServedModel."""

    runner: PagedRunner
    max_context_tokens: int
    memory_bytes: int
    products: tuple[ProductTrial, ...]


def load_shard_runner(load: GeneratorLoad, group: RankGroup, meet: Callable[[], None]) -> LoadedShard:
    """Load the part of one rank; return it when all ranks together compute the logits of transformers' model.

    Raises InvalidModel, OutOfMemory, RuntimeError where another rank fails.
    """
    try:
        return _load(load, group, meet)
    except NotPaged as error:
        raise InvalidModel(f"{load.folder}: tensor_parallel: {error.message}; remove it") from error


def _load(load: GeneratorLoad, group: RankGroup, meet: Callable[[], None]) -> LoadedShard:
    folder, ranks = load.folder, group.shard.size
    device = torch.device(load.device.id)
    whole = read_shape(folder, load.dtype, load.entry.kv_cache_dtype)
    torch.set_num_threads(load.performance.intra_op_threads)
    model = load_shard(load, group.shard)
    has_kernels = device_kernels.are_available(device)
    is_transposed = device.type == "cpu" and not has_kernels
    cache = make_cache(load, whole, device, is_transposed=is_transposed, ranks=ranks)
    query_heads = whole.query_heads // ranks
    max_context_tokens = min(whole.max_context_tokens, cache.blocks * BLOCK_TOKENS)
    meet()
    join_model(model, group, whole.vocabulary_size)
    trial = Trial(model, folder, whole.vocabulary_size, max_context_tokens)
    # A compiled step computes all layers at once, without sums over the ranks in between; torch's kernels serve.
    maker = LinearMaker(model, folder, None, load.entry.kernels, defers_compiled=is_transposed)
    phase("layers", len(linear_weights(model)), "layers")
    on_device = DeviceAttention(cache, query_heads, device) if has_kernels else None
    attention = BlockAttention(cache, query_heads, whole.cache.head_size**-0.5, on_device)
    decoder = make_decoder(load, model, attention, maker)
    assert isinstance(decoder, LlamaDecoder), "the check of the entry allows no other decoder"
    join_ranks(decoder, group, whole.vocabulary_size)
    layouts = LayoutMaker(cache, query_heads // cache.shape.heads, device, makes_tables=has_kernels)
    runner = PagedRunner(decoder, cache, layouts, AdapterSet(decoder, device, DTYPES[load.dtype], folder))
    phase("checking the logits")
    meet()
    trial.check(runner, cache.shape.dtype)
    return LoadedShard(runner, max_context_tokens, maker.held_bytes + cache.size_bytes, maker.products)
