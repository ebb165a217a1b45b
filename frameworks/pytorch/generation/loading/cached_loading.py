"""Load a model that paged attention does not serve: transformers' modules and caches compute it.

The model is checked against its pass without a cache, and its caches are measured.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.cpu_layers.packed import packed_layer_bytes
from frameworks.pytorch.generation.loading.cached_model import CachedModel, CachedRunner, SequenceCache, cache_bytes
from frameworks.pytorch.generation.loading.code_needs import CodeNeeds
from frameworks.pytorch.generation.loading.served import GeneratorLoad, ServedModel, load_model
from frameworks.pytorch.generation.loading.vision_loading import load_vision, see_by_caches
from frameworks.pytorch.generation.step.shape import max_cache_bytes, read_limits
from frameworks.pytorch.generation.step.trial import Trial
from frameworks.pytorch.generation.vision.language import sees
from frameworks.pytorch.generation.weights.packed.building import (
    packed_bytes,
    packed_dtype,
    packed_modules,
    use_fast_layers,
)
from frameworks.scheduling.steps.cache_blocks import CacheBlocks, CacheSize
from memory.sizes import format_size

# A model that forgets its cache at the start of a part is off by more than its own rounding.
_MAX_PARTS_ERROR = 4.0
_FIRST_TOKENS = 4
_ERRORS = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError)


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
    needs.wait(packed_modules(model))
    layer_bytes = use_fast_layers(model)
    torch.set_num_threads(load.performance.intra_op_threads)
    vision = load_vision(load, model, limits.max_context_tokens) if sees(model) and entry.vision else None
    trial = Trial(model, folder, limits.vocabulary_size, limits.max_context_tokens)
    cached = CachedModel(model)
    size = check_caches(trial, cached)
    activation_bytes = 0
    if vision is not None:
        see_by_caches(load, vision, cached)
        activation_bytes = vision.activation_bytes(limits.max_context_tokens)
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
    weight_bytes += packed_layer_bytes(model.modules())
    return ServedModel(
        CachedRunner(cached, pool.block_bytes),
        pool,
        min(limits.max_context_tokens, pool.max_tokens),
        weight_bytes + pool.num_blocks * pool.block_bytes + activation_bytes,
        splits_prompts=cached.can_continue,
        unpaged_because=reason,
        dtype=packed_dtype(model),
        image_prompts=None if vision is None else vision.prompts,
    )


def _least_bytes(pool: CacheBlocks) -> int:
    return (pool.state_tokens // pool.block_tokens + 1) * pool.block_bytes


def check_caches(trial: Trial, cached: CachedModel) -> CacheSize:
    """Return the size of the caches, and set `cached.can_continue`.

    Raises InvalidModel where the model computes something else with a cache, or where tokens attend to later ones;
    OutOfMemory.
    """
    trial.check_causal(cached.logits_without_cache)
    counts, sizes = trial.counts, dict[int, int]()
    try:
        with torch.inference_mode():
            cached.find_states(trial.token_ids[0])
        whole = [sum(counts[:2]), *counts[2:]]
        off = trial.off(_run(trial, cached, whole, sizes), min(1, len(counts) - 1))
        _run(trial, cached, [1] * min(_FIRST_TOKENS, len(trial.token_ids)), sizes)
    except _ERRORS as error:
        trial.check_memory(error)
        raise InvalidModel(f"{trial.folder}: the model does not run with a cache: {_described(error)}") from error
    if not off <= trial.tolerance:
        raise InvalidModel(
            f"{trial.folder}: with transformers' own cache the model's logits are off by {off:.3g} times their spread; "
            "it is not served"
        )
    cached.can_continue = _continues(trial, cached, off)
    return _size(sizes)


def _continues(trial: Trial, cached: CachedModel, off: float) -> bool:
    """Whether the model is right where parts of a prompt follow others. `off`: its error for a whole prompt."""
    if len(trial.counts) == 1:
        return False
    try:
        in_parts = trial.off(_run(trial, cached, trial.counts, {})[1:], 1)
    except _ERRORS as error:
        trial.check_memory(error)
        return False
    return in_parts <= _MAX_PARTS_ERROR * max(off, float(np.finfo(np.float32).eps))


def _run(trial: Trial, cached: CachedModel, counts: list[int], sizes: dict[int, int]) -> Any:
    """Return the logits after each part, float32 [parts, vocabulary]. `sizes`: tokens → bytes, of caches of up to
    _FIRST_TOKENS tokens, and of the whole text.
    """
    cache: SequenceCache = cached.start()
    rows: list[torch.Tensor] = []
    start = 0
    for count in counts:
        with torch.inference_mode():
            # The sequences of a server run between each other.
            cached.logits(list(trial.token_ids[-_FIRST_TOKENS:]), 0, cached.start(), 1)
            rows.append(cached.logits(list(trial.token_ids[start : start + count]), start, cache, 1).float().cpu())
        start += count
        if start <= _FIRST_TOKENS or start == sum(counts):
            sizes[start] = cache_bytes(cache)
    return torch.cat(rows).numpy()


def _size(sizes: dict[int, int]) -> CacheSize:
    """Return an upper bound of the measured sizes: layers with a window grow at first only."""
    points = sorted(sizes.items())
    grown = [-(-(large - small) // (end - start)) for (start, small), (end, large) in pairwise(points)]
    token_bytes = max([0, *grown])
    return CacheSize(max(0, *(size - token_bytes * tokens for tokens, size in points)), token_bytes)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, LookupError | AssertionError) else str(error)
