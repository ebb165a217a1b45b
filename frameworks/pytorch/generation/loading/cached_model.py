"""Compute sequences with transformers' own caches, as its `generate` does: each sequence has a cache of its own."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.models.minimax.modeling_minimax import MiniMaxCache

from frameworks.scheduling.steps.sequence import StepPart, StepPlan

# Outputs of these names are passed on as `past_key_values`.
_RENAMED_CACHES = ("mems", "past_buckets_states")


@dataclass(slots=True)
class SequenceCache:
    """The cache of one sequence. `arguments`: of the model's forward pass. `states`: the tensors that modules keep
    between two passes, in the order of CachedModel's list. `options`: as transformers' `generate` keeps them between
    two passes, of a prompt with images; None for a text.
    """

    arguments: dict[str, Any]
    states: list[torch.Tensor | None]
    options: dict[str, Any] | None = None


class _LinearFirstCache(MiniMaxCache):  # type: ignore[misc]  # untyped
    """The cache of MiniMax Text 01, whose first layer is linear. transformers asks the first layer for the number of
    past tokens; here the first layer with attention answers.
    """

    def __init__(self, attention_layer: int) -> None:
        super().__init__()
        self._attention_layer = attention_layer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        length: int = super().get_seq_length(layer_idx or self._attention_layer)
        return length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        sizes: tuple[int, int] = super().get_mask_sizes(query_length, layer_idx or self._attention_layer)
        return sizes


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
        # Modules that keep a state outside the cache, as those of RecurrentGemma, and the name of its attribute.
        self._states: list[tuple[torch.nn.Module, str]] = []

    def start(self) -> SequenceCache:
        """Return the empty cache of a new sequence."""
        arguments: dict[str, Any] = {}
        config = self._model.config.get_text_config(decoder=True)
        if config.model_type == "minimax" and "full_attention" in config.layer_types:
            arguments[self._cache_name] = _LinearFirstCache(config.layer_types.index("full_attention"))
        elif self._makes_no_cache:
            arguments[self._cache_name] = DynamicCache(config=config)
        return SequenceCache(arguments, [None] * len(self._states))

    def find_states(self, token_id: int) -> None:
        """Compute a token, and note the modules that keep a state. Call it once, before all sequences."""
        before = [
            (module, name, value)
            for module in self._model.modules()
            for name, value in vars(module).items()
            if value is None or isinstance(value, torch.Tensor)
        ]
        self.logits([token_id], 0, self.start(), 1)
        self._states = [
            (module, name)
            for module, name, value in before
            if isinstance(state := getattr(module, name), torch.Tensor) and state is not value
        ]

    def logits(self, token_ids: list[int], start: int, cache: SequenceCache, num_logits: int) -> torch.Tensor:
        """Compute the tokens of one sequence from `start` on; return [num_logits, vocabulary] after the last of them.

        `cache`: of the `start` tokens before; it is changed.
        """
        if start and len(token_ids) > 1 and not (self.can_continue and cache.options is None):
            rows = [
                self._forward(token_ids[i : i + 1], start + i, cache, int(i >= len(token_ids) - num_logits))
                for i in range(len(token_ids))
            ]
            return torch.cat(rows)
        return self._forward(token_ids, start, cache, num_logits)

    def logits_of_images(
        self, token_ids: list[int], inputs: Mapping[str, Any], cache: SequenceCache, num_logits: int
    ) -> torch.Tensor:
        """Compute a whole prompt with images; return [num_logits, vocabulary] after the last of its tokens.

        `inputs`: the tensors of transformers' processor. `cache`: of a new sequence.
        """
        device = self._model.device
        cache.options = {name: _on(value, device) for name, value in inputs.items()}
        return self._forward(token_ids, 0, cache, num_logits)

    def logits_without_cache(self, token_ids: list[int]) -> torch.Tensor:
        """Return the logits after each of the tokens, [tokens, vocabulary]."""
        logits: torch.Tensor = self._model(
            input_ids=torch.tensor([token_ids], device=self._model.device), use_cache=False
        ).logits[0]
        return logits

    def _forward(self, token_ids: list[int], start: int, cache: SequenceCache, num_logits: int) -> torch.Tensor:
        device = self._model.device
        options: dict[str, Any] = {"use_cache": True, **(cache.options or {}), **cache.arguments}
        if self._takes_positions and "position_ids" not in options:
            options["position_ids"] = torch.arange(start, start + len(token_ids), device=device)[None]
        if self._selects_logits:
            # 0 would keep all.
            options["logits_to_keep"] = max(1, num_logits)
        inputs = self._model.prepare_inputs_for_generation(
            torch.tensor([token_ids], device=device), is_first_iteration=start == 0, **options
        )
        for (module, name), state in zip(self._states, cache.states, strict=True):
            setattr(module, name, state)
        output = self._model(**inputs, return_dict=True)
        for name in ALL_CACHE_NAMES:
            if output.get(name) is not None:
                cache.arguments["past_key_values" if name in _RENAMED_CACHES else name] = output[name]
        cache.states = [getattr(module, name) for module, name in self._states]
        if cache.options is not None:
            cache.options = self._model._update_model_kwargs_for_generation(output, options, is_encoder_decoder=False)
        logits: torch.Tensor = output.logits[0]
        return logits[logits.shape[0] - num_logits :]


def cache_bytes(cache: SequenceCache) -> int:
    """Return the bytes of the tensors that a sequence's cache holds."""
    tensors = _tensors([cache.arguments, cache.states])
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


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


class CachedRunner:
    """A StepRunner: the sequences of a step one after another. A sequence holds its cache while it holds blocks."""

    def __init__(self, model: CachedModel, block_bytes: int) -> None:
        """`block_bytes`: of the pool that counts the caches."""
        self.model = model
        self.block_bytes = block_bytes

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """As StepRunner.logits, [sum of num_logits, vocabulary]."""
        return torch.cat([self._compute(part) for part in plan.parts])

    def _compute(self, part: StepPart) -> torch.Tensor:
        sequence = part.sequence
        if part.start == 0:
            sequence.cache = self.model.start()
        cache: SequenceCache | None = sequence.cache
        assert cache is not None, "the tokens before the part are computed"
        media = sequence.request.media
        if media is not None and part.start == 0:
            return self.model.logits_of_images(part.token_ids, media.inputs, cache, part.num_logits)
        return self.model.logits(part.token_ids, part.start, cache, part.num_logits)
