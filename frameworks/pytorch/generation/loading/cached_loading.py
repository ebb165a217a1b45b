"""Load a model that paged attention does not serve: transformers' modules and caches compute it."""

import torch

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.loading.cache_trial import check_caches
from frameworks.pytorch.generation.loading.cached_model import CachedModel
from frameworks.pytorch.generation.loading.cached_runner import CachedRunner
from frameworks.pytorch.generation.loading.code_needs import CodeNeeds
from frameworks.pytorch.generation.loading.model_loading import load_model, packed_bytes, packed_dtype, use_fast_layers
from frameworks.pytorch.generation.loading.served import GeneratorLoad, ServedModel
from frameworks.pytorch.generation.step.shape import max_cache_bytes, read_limits
from frameworks.pytorch.generation.step.trial import Trial
from frameworks.scheduling.steps.cache_blocks import CacheBlocks
from memory.sizes import format_size


def load_cached(load: GeneratorLoad, reason: str) -> ServedModel:
    """`reason`: why paged attention does not serve the model. Raises InvalidModel, OutOfMemory."""
    folder, entry = load.folder, load.entry
    if load.bits is not None:
        raise InvalidModel(
            f'{folder}: dtype: expected "f32", "f16" or "bf16", got "{load.bits}": the model runs with '
            f"transformers' own modules, because {reason}; choose one of them"
        )
    if entry.kv_cache_dtype != "auto":
        raise InvalidModel(
            f'{folder}: kv_cache_dtype: expected "auto", got "{entry.kv_cache_dtype}": the model runs with '
            f"transformers' own caches, because {reason}; remove it"
        )
    limits = read_limits(folder)
    needs = CodeNeeds(load)
    model = load_model(load)
    needs.wait(model)
    layer_bytes = use_fast_layers(model)
    torch.set_num_threads(load.performance.intra_op_threads)
    trial = Trial(model, folder, limits.vocabulary_size, limits.max_context_tokens)
    cached = CachedModel(model)
    size = check_caches(trial, cached)
    # Enough for max_batch_size texts as long as the context, up to the bound.
    wanted = load.performance.max_sequences * (size.total(limits.max_context_tokens + 1))
    most = max_cache_bytes(entry, load.device.kind)
    if entry.kv_cache_bytes is None:
        most = min(most, max(1, wanted))
    pool = CacheBlocks(size, most, limits.max_context_tokens)
    if pool.max_tokens < 1:
        raise InvalidModel(
            f"{folder}: kv_cache_bytes: expected at least {format_size(_least_bytes(pool))}, which the state and "
            f"{pool.block_tokens} tokens of a text take, got {format_size(most)}; raise it or remove it"
        )
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    weight_bytes = sum(tensor.nbytes for tensor in tensors.values()) + packed_bytes(model) + layer_bytes
    return ServedModel(
        CachedRunner(cached, pool.block_bytes),
        pool,
        min(limits.max_context_tokens, pool.max_tokens),
        weight_bytes + pool.num_blocks * pool.block_bytes,
        splits_prompts=cached.can_continue,
        unpaged_because=reason,
        dtype=packed_dtype(model),
    )


def _least_bytes(pool: CacheBlocks) -> int:
    return (pool.state_tokens // pool.block_tokens + 1) * pool.block_bytes
