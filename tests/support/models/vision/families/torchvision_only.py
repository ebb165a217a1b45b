"""Make tiny models whose processors need torchvision: their folders have the model, the tokenizer and all configs."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save_parts, template
from tests.support.models.vision.tokenizers_b import make_tokenizer

_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip


def make_mistral_large4(folder: Path) -> None:
    """Write a Mistral Large 4 model: Pixtral; attention to indexed keys, layers without positions, experts."""
    tokenizer = make_tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = transformers.MistralLarge4Config(
        vision_config={
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 64, "patch_size": 8,
        },
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "num_hidden_layers": 4, "num_key_value_heads": 4,
            "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 32,
            "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_nope_head_dim": 8, "index_topk": 16, "index_head_dim": 16,
            "index_n_heads": 2, "indexer_types": ["full", "full", "shared", "full"], "kv_source_layers": [0, 1, 1, 3],
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
                "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0,
            },
        },
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
    )  # fmt: skip
    images = {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 64}}
    processor = {
        "processor_class": "PixtralProcessor",
        "patch_size": 8,
        "spatial_merge_size": 2,
        "image_processor": images | {"patch_size": {"height": 8, "width": 8}},
    }
    save_parts(folder, config, tokenizer, template("[IMG]"), processor)


def make_kimi_k25(folder: Path) -> None:
    """Write a Kimi K2.5 model: a tower with embedded and rotated positions, DeepSeek V3 behind."""
    tokenizer = make_tokenizer(
        "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|kimi_k25_video_placeholder|>"
    )
    ids = dict(zip(_KIMI_IDS, tokenizer.convert_tokens_to_ids(list(_KIMI_IDS.values())), strict=True))
    config = transformers.Kimi_K25Config(
        vision_config={
            "patch_size": 8, "pos_emb_height": 8, "pos_emb_width": 8, "num_attention_heads": 2,
            "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
        },
        text_config={
            **_TEXT, "model_type": "deepseek_v3", "vocab_size": len(tokenizer), "num_key_value_heads": 4,
            "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
            "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 32,
            "qk_rope_head_dim": 8, "head_dim": 8, "v_head_dim": 16, "qk_nope_head_dim": 8,
            "routed_scaling_factor": 1.5,
        },
        projection_hidden_size=32,
        tie_word_embeddings=False,
        **ids,
    )  # fmt: skip
    processor = {
        "processor_class": "Kimi_K25Processor",
        "image_processor": {"image_processor_type": "Kimi_K25ImageProcessor", "patch_size": 8, "max_patches": 100},
        "video_processor": {"video_processor_type": "Kimi_K25VideoProcessor", "patch_size": 8},
    }
    save_parts(
        folder,
        config,
        tokenizer,
        template("<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"),
        processor,
    )


_KIMI_IDS = {
    "image_token_id": "<|media_pad|>",
    "video_token_id": "<|kimi_k25_video_placeholder|>",
    "vision_start_token_id": "<|media_begin|>",
    "vision_end_token_id": "<|media_end|>",
}


def make_minimax_m3_vl(folder: Path) -> None:
    """Write a MiniMax M3 model: attention to blocks that an indexer picks, experts, clamped activations."""
    names = ("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>[")
    tokenizer = make_tokenizer(*names)
    image, video = tokenizer.convert_tokens_to_ids(list(names[:2]))
    config = transformers.MiniMaxM3VLConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 64, "patch_size": 8,
        },
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "num_hidden_layers": 3, "intermediate_size": 32,
            "dense_intermediate_size": 96, "shared_intermediate_size": 32, "num_local_experts": 4,
            "num_experts_per_tok": 2, "rotary_dim": 8, "index_n_heads": 2, "index_head_dim": 16,
            "index_block_size": 8, "index_topk_blocks": 2, "index_local_blocks": 1,
            "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        image_token_index=image,
        video_token_index=video,
        projector_hidden_size=48,
    )  # fmt: skip
    size = {"shortest_edge": 32 * 32, "longest_edge": 80 * 80}
    processor = {
        "processor_class": "MiniMaxM3VLProcessor",
        "image_processor": {"image_processor_type": "MiniMaxM3VLImageProcessor", "patch_size": 8, "size": size},
        "video_processor": {"video_processor_type": "MiniMaxM3VLVideoProcessor", "patch_size": 8},
    }
    save_parts(folder, config, tokenizer, template(names[0]), processor)


def make_molmo2(folder: Path) -> None:
    """Write a Molmo 2 model: overlapping crops, two layers of the tower pooled by attention, tokens of its own."""
    tokenizer = make_tokenizer()
    size = len(tokenizer)
    # They stand behind the vocabulary: they are read from a table of their own and never written.
    marks = (
        "<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>", "<frame_start>", "<frame_end>",
        "<im_low>", "<|image|>", "<|video|>",
    )  # fmt: skip
    tokenizer.add_tokens([transformers.AddedToken(mark, special=True, normalized=False) for mark in marks])
    ids = dict(zip(marks, tokenizer.convert_tokens_to_ids(list(marks)), strict=True))
    config = transformers.Molmo2Config(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 16, "image_size": [32, 32], "patch_size": 8,
        },
        adapter_config={
            "vision_feature_layer": [1, 0], "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
            "head_dim": 16, "intermediate_size": 48, "text_hidden_size": 64,
        },
        text_config={
            "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "vocab_size": size, "additional_vocab_size": 16, "num_hidden_layers": 2, "intermediate_size": 96,
            "max_position_embeddings": 1024,
        },
        image_start_token_id=ids["<im_start>"],
        low_res_image_start_token_id=ids["<low_res_im_start>"],
        image_end_token_id=ids["<im_end>"],
        image_patch_id=ids["<im_patch>"],
        frame_start_token_id=ids["<frame_start>"],
        frame_end_token_id=ids["<frame_end>"],
    )  # fmt: skip
    processor = {
        "processor_class": "Molmo2Processor",
        "image_processor": {
            "image_processor_type": "Molmo2ImageProcessor", "size": {"height": 32, "width": 32}, "patch_size": 8,
            "max_crops": 3, "overlap_margins": [1, 1], "pooling_size": [2, 2],
        },
        "video_processor": {"video_processor_type": "Molmo2VideoProcessor", "patch_size": 8},
    }  # fmt: skip
    save_parts(folder, config, tokenizer, template("<|image|>", "{{ bos_token }}"), processor)
