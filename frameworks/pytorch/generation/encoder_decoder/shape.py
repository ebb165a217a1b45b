"""Read the size of a model with an encoder and a decoder from its config.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheShape
from frameworks.pytorch.loader import DTYPES

# Positions by distance have no end: enough for the tasks of these models.
_MAX_SOURCE_TOKENS, _MAX_TEXT_TOKENS = 4096, 2048
_MAX_KV_BYTES = {"cpu": 1 << 30, "mps": 2 << 30, "cuda": 4 << 30}


@dataclass(frozen=True, slots=True)
class EncoderDecoderShape:
    """`cache`: the keys and values of a token, of the decoder or of the source. `max_source_tokens`: that the encoder
    reads. `max_text_tokens`: of the decoder, with its prompt.
    """

    cache: CacheShape
    query_heads: int
    vocabulary_size: int
    max_source_tokens: int
    max_text_tokens: int

    @property
    def blocks_of_text(self) -> int:
        """Blocks of the longest source and the longest text."""
        return sum(-(-each // BLOCK_TOKENS) for each in (self.max_source_tokens, self.max_text_tokens))

    def kv_bytes(self, entry: TorchModelEntry, max_sequences: int, kind: str) -> int:
        """Return the bytes of the KV cache, in whole blocks, on a device of this kind (`cpu`, `cuda`, `mps`)."""
        block_bytes = self.cache.token_bytes * BLOCK_TOKENS
        if entry.kv_cache_bytes is not None:
            return entry.kv_cache_bytes // block_bytes * block_bytes
        blocks = min(max_sequences * self.blocks_of_text, _MAX_KV_BYTES[kind] // block_bytes)
        return max(blocks, self.blocks_of_text) * block_bytes


def read_encoder_decoder_shape(folder: Path, dtype: str, kv_dtype: str = "auto") -> EncoderDecoderShape:
    """Read config.json with transformers' own class for it. `dtype`: in which the model is served. `kv_dtype`: of keys
    and values, auto for the same. Raises InvalidModel.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        return _shape_of(config, DTYPES[dtype if kv_dtype == "auto" else kv_dtype])
    except Exception as error:
        raise InvalidModel(f"{folder / 'config.json'}: transformers cannot read it: {error}") from error


def _shape_of(config: Any, dtype: torch.dtype) -> EncoderDecoderShape:
    decoder = config.decoder if hasattr(getattr(config, "decoder", None), "vocab_size") else config
    heads = _first(
        decoder, "decoder_attention_heads", "num_decoder_attention_heads", "num_heads", "num_attention_heads"
    )
    hidden_size = _first(decoder, "d_model", "hidden_size")
    head_size = int(getattr(decoder, "d_kv", None) or getattr(decoder, "head_dim", None) or hidden_size // heads)
    layers = _first(decoder, "decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "num_hidden_layers")
    key_heads = int(getattr(decoder, "num_key_value_heads", None) or heads)
    names = ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings")
    text = min((int(each) for name in names if (each := getattr(decoder, name, None))), default=_MAX_TEXT_TOKENS)
    names = ("max_source_positions", "max_encoder_position_embeddings", "max_position_embeddings")
    source = next((int(each) for name in names if (each := getattr(config, name, None))), None)
    by_distance = max(_MAX_SOURCE_TOKENS, int(getattr(config, "n_positions", None) or 0))
    vocabulary_size = int(getattr(decoder, "tgt_vocab_size", None) or decoder.vocab_size)
    return EncoderDecoderShape(
        CacheShape(layers, key_heads, head_size, dtype), heads, vocabulary_size, source or by_distance, text
    )


def _first(config: Any, *names: str) -> int:
    return next(int(each) for name in names if (each := getattr(config, name, None)))
