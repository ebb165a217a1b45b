"""Make a tiny config of any family, by the names that configs give their sizes."""

import re
from collections.abc import Callable
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH = 32
LAYERS = 2
HEADS = 4
POSITIONS = 160
SIDE = 64
LABELS = ("ant", "bee", "cat")

_SIZES: tuple[tuple[str, int | Callable[[int], int]], ...] = (
    (r"(hidden_size|d_model|n_embd|hidden_dim|embed_dim|embedding_size|emb_dim|dim|d_embedding|embed_size)", WIDTH),
    (r"(encoder_hidden_dim|decoder_hidden_dim|d_encoder|lstm_dim|projection_dim|projection_size)", WIDTH),
    (r".*(hidden_size|hidden_dim|_channels|embed_dim|latent_dim|feature_size|proj_dim|feat_size)", WIDTH),
    (r"(intermediate_size|ffn_dim|n_inner|d_inner|d_ff|dff|ffn_hidden_size|dim_feedforward)", 48),
    (r".*(intermediate_size|ffn_dim|feedforward_dim|ffn_hidden_size|mlp_dim|inner_dim)", 48),
    (r".*(num_key_value_heads|n_head_kv|num_kv_heads)", 2),
    (r".*(attention_heads|n_heads?|num_heads|attn_heads)", HEADS),
    (r".*(head_dim|d_kv|head_size)", 8),
    (r".*kv_lora_rank", 8),
    (r".*q_lora_rank", 16),
    (r"(num_hidden_layers|num_layers|n_layers?|num_decoder_layers|num_encoder_layers|depth)", LAYERS),
    (r".*(encoder_layers|decoder_layers|hidden_layers|_layers|num_blocks|hidden_groups)", lambda value: min(value, 2)),
    (r".*(num_experts_per_tok|top_?k_experts|moe_topk|moe_top_k)", 2),
    (r"(n_routed_experts|num_experts|num_local_experts|moe_num_experts)", 4),
    (r".*(n_group|topk_group|n_shared_experts)", 1),
    (r".*(max_position_embeddings|n_positions|max_seq_len|max_sequence_length)", POSITIONS),
    (r".*(image_size|img_size)", SIDE),
    (r".*(num_queries|num_denoising|num_proposals)", 6),
    (r".*(vocab_size|vocabulary_size)", lambda value: min(value, 512)),
)  # fmt: skip
_KEPT = re.compile(
    r"(num_feature_levels|.*_per_layer|num_channels|in_channels|audio_channels|num_feature_layers|type_vocab_size|"
    r"adapter_.*|num_adapter_layers|first_k_dense_replace|.*kernel_size|id2label|label2id|rope_.*|"
    r"num_feat_extract_layers|max_2d_position_embeddings|.*input_channels|.*out_indices|feature_strides|feat_strides|num_conv_.*|num_mem_blocks)"
)
_RAGGED = re.compile(
    r".*(layer_types|block_types|layers_block_type|mlp_layer_types|attention_types|attention_layers|per_layer_config)"
)
"""One element a layer, and made again from the number of layers."""
_WIDTHS = re.compile(r".*(hidden_sizes|channels|neck_hidden_sizes|stem_channels|hidden_dims|embed_dims|conv_dim)")


def tiny(model_type: str, changes: dict[str, Any], labels: tuple[str, ...] = LABELS, **tokens: int) -> Any:
    """Return a config of a few ten thousand weights; `changes`: nested, over what the names give.

    `tokens`: ids such as `pad_token_id`, set where the family has the name.
    """
    config_class = CONFIG_MAPPING[model_type]
    sizes = shrunk(config_class().to_dict(), tokens)
    for key in ("transformers_version", "architectures", "model_type"):
        sizes.pop(key, None)
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return config_class(**_merged(sizes, named | changes))


def shrunk(sizes: dict[str, Any], tokens: dict[str, int]) -> dict[str, Any]:
    """Return the values of a config with tiny sizes; nested configs too."""
    return {
        key: small
        for key, value in sizes.items()
        if not _RAGGED.fullmatch(key) and (small := _small(key, value, tokens)) is not _ABSENT
    }


_ABSENT = object()


def _small(key: str, value: Any, tokens: dict[str, int]) -> Any:
    if key in ("torch_dtype", "dtype"):
        return _ABSENT
    if key.endswith(("_token_id", "_token_index")):
        return tokens.get(key, min(value, 5) if isinstance(value, int) else _ABSENT)
    if isinstance(value, dict) and not key.startswith("rope") and all(isinstance(name, str) for name in value):
        return shrunk(value, tokens)
    if _KEPT.fullmatch(key) or isinstance(value, bool):
        return value
    if isinstance(value, int) and value > 0:
        return next((_size(size, value) for name, size in _SIZES if re.fullmatch(name, key)), value)
    if isinstance(value, list | tuple) and value and all(isinstance(part, int) for part in value):
        return _small_list(key, list(value))
    return value


def _size(size: int | Callable[[int], int], value: int) -> int:
    return size if isinstance(size, int) else size(value)


def _small_list(key: str, values: list[int]) -> list[int]:
    if key.endswith(("depths", "layers_per_stage")):
        return [1] * len(values)
    if re.fullmatch(r".*(num_heads|num_attention_heads)", key):
        return [2] * len(values)
    if _WIDTHS.fullmatch(key):
        ranks = {value: rank for rank, value in enumerate(sorted({value for value in values if value > 3}))}
        return [8 * (ranks[value] + 1) if value > 3 else value for value in values]
    if re.fullmatch(r".*(image_size|img_size)", key):
        return [SIDE] * len(values)
    return values


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below` with the values of `above`; DROP takes a key away."""
    merged = dict(below)
    for key, value in above.items():
        if value == "DROP":
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict) and _same_kind(key, value):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


def _same_kind(key: str, value: dict[str, Any]) -> bool:
    # A config that names its model type takes the place of the other.
    return "model_type" not in value and not key.endswith("2label")
