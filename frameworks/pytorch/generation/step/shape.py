"""Read the size of a generating model from its config.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheShape
from frameworks.pytorch.loader import DTYPES

# Without a value in the entry: enough for `max_batch_size` texts as long as the context, up to this bound.
_MAX_KV_BYTES = {"cpu": 1 << 30, "mps": 2 << 30, "cuda": 4 << 30}
# Context length of a model whose files name none.
_DEFAULT_CONTEXT = 2048
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "context_length")
# RoPE frequencies that change with the lengths of a batch: a sequence would depend on others. Up to the length of the
# training they do not change.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
# Other kinds of layers have a state of another form, or choose the tokens that they attend to.
_PAGED_LAYERS = frozenset({"full_attention", "sliding_attention"})


_KV_DTYPES = DTYPES | {"fp8": torch.float8_e4m3fn}


class NotPaged(InvalidModel):
    """Paged attention does not serve the model."""


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The bounds of a model's texts by its config.json."""

    max_context_tokens: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class GeneratorShape:
    """The size of the model by its config.json. `shared_elements`: elements of an embedding table that is also the
    last layer's weights.
    """

    max_context_tokens: int
    vocabulary_size: int
    cache: CacheShape
    query_heads: int
    shared_elements: int = 0


def read_limits(folder: Path) -> TextLimits:
    """Read config.json with transformers' own class for it. Raises InvalidModel if it states no vocabulary."""
    config = read_config(folder)
    try:
        return TextLimits(_context(config), int(config.vocab_size))
    except Exception as error:
        raise InvalidModel(f"{folder / 'config.json'}: transformers cannot read it: {error}") from error


def read_shape(folder: Path, dtype: str, kv_dtype: str = "auto") -> GeneratorShape:
    """As read_limits, with the shape of the attention. `dtype`: in which the model is served. `kv_dtype`: of its keys
    and values, auto for the same.

    Raises InvalidModel, and NotPaged where the layers have no keys and values of one shape.
    """
    limits, config = read_limits(folder), read_config(folder)
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _PAGED_LAYERS)
    if other:
        raise NotPaged(f"it has layers of {', '.join(other)}")
    try:
        heads = int(config.num_attention_heads)
        key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        cache = CacheShape(
            int(config.num_hidden_layers), key_heads, head_size, _KV_DTYPES[dtype if kv_dtype == "auto" else kv_dtype]
        )
        shared = limits.vocabulary_size * int(config.hidden_size) if _ties_weights(folder, config) else 0
    except Exception as error:
        raise NotPaged(f"its config.json has no single shape of attention: {error}") from error
    return GeneratorShape(limits.max_context_tokens, limits.vocabulary_size, cache, heads, shared)


def kv_bytes(entry: TorchModelEntry, shape: GeneratorShape, max_sequences: int, kind: str) -> int:
    """Return the bytes of the KV cache, in whole blocks, on a device of this kind (`cpu`, `cuda`, `mps`)."""
    block_bytes = shape.cache.token_bytes * BLOCK_TOKENS
    if entry.kv_cache_bytes is not None:
        return entry.kv_cache_bytes // block_bytes * block_bytes
    blocks_per_text = -(-shape.max_context_tokens // BLOCK_TOKENS)
    wanted = max_sequences * blocks_per_text * block_bytes
    # At least one text of the maximum length fits.
    return min(wanted, max(_MAX_KV_BYTES[kind] // block_bytes, blocks_per_text) * block_bytes)


def max_cache_bytes(entry: TorchModelEntry, kind: str) -> int:
    """Return the bytes of all caches of a model that paged attention does not serve, on a device of this kind."""
    return _MAX_KV_BYTES[kind] if entry.kv_cache_bytes is None else entry.kv_cache_bytes


def read_config(folder: Path) -> Any:
    """Read config.json with transformers' own class for it, for texts. Raises InvalidModel."""
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        return config.get_text_config(decoder=True)
    except Exception as error:
        raise InvalidModel(f"{folder / 'config.json'}: transformers cannot read it: {error}") from error


def _ties_weights(folder: Path, config: Any) -> bool:
    """Return whether the embedding table is also the last layer's weights. Configs of texts alone lack the key."""
    own = getattr(config, "tie_word_embeddings", None)
    return bool(read_json(folder / "config.json").get("tie_word_embeddings", True) if own is None else own)


def _context(config: Any) -> int:
    """Return the maximum length of a text in tokens, by config.json."""
    positions = next((each for name in _CONTEXT_NAMES if (each := getattr(config, name, None))), None)
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have separate ones for each kind of layer.
    for each in [rope, *(part for part in rope.values() if isinstance(part, dict))]:
        trained = each.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if each.get("rope_type") in _LENGTH_DEPENDENT_ROPE and trained:
            positions = min(int(positions or trained), int(trained))
    return int(positions or _DEFAULT_CONTEXT)
