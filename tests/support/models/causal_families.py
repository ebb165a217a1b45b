"""Tiny models of every causal family that transformers has: its own config, made small by the names of its sizes."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.support.models.causal_folders import CONTEXT_TOKENS, END_ID, VOCABULARY_SIZE, byte_tokenizer, spread_weights

ALL_FAMILIES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))

_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_dim", "emb_dim", "lru_width"), 64),
    **dict.fromkeys(("attention_hidden_size", "embedding_size", "input_embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "dim_ff", "dff", "d_inner", "ffn_hidden_size", "n_inner"), 96),
    **dict.fromkeys(("intermediate_size_mlp", "dense_intermediate_size", "shared_intermediate_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "dim_head", "kv_channels", "global_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), CONTEXT_TOKENS),
    **dict.fromkeys(("context_length", "model_max_length", "prompt_mid_dim"), CONTEXT_TOKENS),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "attention_window_size"), 40),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim",), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 32),
    **dict.fromkeys(("index_n_heads",), 2),
    **dict.fromkeys(("index_head_dim", "rotary_dim"), 16),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 16),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 8),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads",), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("vocab_size_per_layer_input", "unpadded_vocab_size"), VOCABULARY_SIZE),
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size_per_layer_input": 16,
    "bos_token_id": END_ID,
    "eos_token_id": END_ID,
    "pad_token_id": END_ID,
}
"""Sizes by the names that configs have for them."""

_MIXED = {"layer_types": ["linear_attention", "full_attention"]}
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"]}
_LATENT = {"num_key_value_heads": 4}
_OF_FAMILY: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), _MIXED),
    **dict.fromkeys(("granitemoehybrid", "minimax"), _MIXED),
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), _CONVOLUTIONS),
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note_text"), _LATENT),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "minicpm3", "youtu", "hy_v4"), _LATENT),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), _MIXED | _LATENT),
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "dots1": {"n_shared_experts": 1},
    "xlstm": {"qk_dim_factor": 1.0},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"head_dim": 32, "n_groups": 1},
    "nemotron_h": {"n_groups": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba": {
        "num_hidden_layers": 6,  # two with the shared attention
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_query_groups": 4,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""Beside the sizes: at least one layer of each kind, and sizes that depend on each other."""


def family_config(family: str) -> Any:
    """A small config of a model_type: the default one with every known size replaced."""
    config_class = CONFIG_MAPPING[family]
    known = config_class().get_text_config(decoder=True).to_dict()
    sizes = {name: size for name, size in _SIZES.items() if name in known}
    if "is_decoder" in known:  # an encoder unless it is true
        sizes |= {"is_decoder": True, "pad_token_id": 1}
    return config_class(**sizes | _OF_FAMILY.get(family, {}))


def family_model(family: str, seed: int = 0) -> Any:
    """A model with random weights, whose greedy texts do not turn on the last bit of a float."""
    torch.manual_seed(seed)
    return spread_weights(AutoModelForCausalLM.from_config(family_config(family)).eval())


def save_family(folder: Path, family: str) -> Path:
    """Save a tiny model of the family, with a byte-level tokenizer."""
    transformers.logging.set_verbosity_error()
    model = family_model(family)
    model.generation_config.eos_token_id = END_ID
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
