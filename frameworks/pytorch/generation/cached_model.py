"""Compute sequences with transformers' own caches, as its `generate` does: each sequence has a cache of its own."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin
from transformers.generation.utils import ALL_CACHE_NAMES

# Outputs of these names are passed on as `past_key_values`.
_RENAMED_CACHES = ("mems", "past_buckets_states")

SequenceCache = dict[str, Any]
"""The arguments of the model's forward pass that hold a sequence's cache."""


class CachedModel:
    """An AutoModelForCausalLM with the caches of its sequences. `can_continue`: whether several tokens may follow those
    in a cache; if not, they are computed one by one.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.can_continue = True
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._selects_logits = "logits_to_keep" in parameters
        self._cache_name = "cache_params" if "cache_params" in parameters else "past_key_values"
        # Other models make a cache of their own in their first pass.
        self._makes_no_cache = model._supports_default_dynamic_cache()

    def start(self) -> SequenceCache:
        """Return the empty cache of a new sequence."""
        if not self._makes_no_cache:
            return {}
        return {self._cache_name: DynamicCache(config=self._model.config.get_text_config(decoder=True))}

    def logits(self, token_ids: list[int], start: int, cache: SequenceCache, num_logits: int) -> torch.Tensor:
        """Compute the tokens of one sequence from `start` on; return [num_logits, vocabulary] after the last of them.

        `cache`: of the `start` tokens before; it is changed.
        """
        if start and len(token_ids) > 1 and not self.can_continue:
            rows = [
                self._forward(token_ids[i : i + 1], start + i, cache, int(i >= len(token_ids) - num_logits))
                for i in range(len(token_ids))
            ]
            return torch.cat(rows)
        return self._forward(token_ids, start, cache, num_logits)

    def logits_without_cache(self, token_ids: list[int]) -> torch.Tensor:
        """Return the logits after each of the tokens, [tokens, vocabulary]."""
        logits: torch.Tensor = self._model(
            input_ids=torch.tensor([token_ids], device=self._model.device), use_cache=False
        ).logits[0]
        return logits

    def _forward(self, token_ids: list[int], start: int, cache: SequenceCache, num_logits: int) -> torch.Tensor:
        device = self._model.device
        options: dict[str, Any] = {"use_cache": True, **cache}
        if self._takes_positions:
            options["position_ids"] = torch.arange(start, start + len(token_ids), device=device)[None]
        if self._selects_logits:
            # 0 would keep all.
            options["logits_to_keep"] = max(1, num_logits)
        inputs = self._model.prepare_inputs_for_generation(
            torch.tensor([token_ids], device=device), is_first_iteration=start == 0, **options
        )
        output = self._model(**inputs, return_dict=True)
        for name in ALL_CACHE_NAMES:
            if output.get(name) is not None:
                cache["past_key_values" if name in _RENAMED_CACHES else name] = output[name]
        logits: torch.Tensor = output.logits[0]
        return logits[logits.shape[0] - num_logits :]


def cache_bytes(cache: object) -> int:
    """Return the bytes of the tensors that a sequence's cache holds."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in _tensors(cache)}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def _tensors(held: object) -> Iterator[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, Mapping):
        for each in held.values():
            yield from _tensors(each)
    elif isinstance(held, list | tuple):
        for each in held:
            yield from _tensors(each)
    elif isinstance(held, Cache | CacheLayerMixin | LinearAttentionCacheLayerMixin):
        yield from _tensors(vars(held))
