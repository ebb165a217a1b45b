"""Say what a family needs beyond the generic tiny config: by model type, for each task or for all."""

from typing import Any

_RESNET = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
_HGNET = {
    "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 16, 16], "stage_mid_channels": [8, 8, 8, 8],
    "hidden_sizes": [16, 16, 16, 16], "stage_out_channels": [16, 16, 16, 16], "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
}  # fmt: skip
_RT_DETR: dict[str, Any] = {"num_queries": 6, "encoder_in_channels": [16, 16, 16], "decoder_in_channels": [32] * 3}
_RT_RESNET = {
    "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic",
}  # fmt: skip
_ALL_STAGES = _RESNET | {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
_LATENT = {"num_key_value_heads": 4, "qk_head_dim": 16}
_HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_VIT_BACKBONE = {"num_hidden_layers": 4, "out_features": "DROP", "out_indices": [1, 2, 3, 4]}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_ZAMBA: dict[str, Any] = {
    "layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4,
    "attention_hidden_size": 64, "attention_head_dim": 16,
}  # fmt: skip
_POINTS = {
    "encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 32, "descriptor_decoder_dim": 32,
    "keypoint_threshold": 0.0, "max_keypoints": 12,
}  # fmt: skip
_SAM: dict[str, Any] = {
    "vision_config": {"num_pos_feats": 16, "global_attn_indexes": [1], "window_size": 2, "mlp_dim": 48},
    "prompt_encoder_config": {"image_embedding_size": 4},
}
_SWIN = {"embed_dim": 8, "window_size": 4, "hidden_size": 64, "num_layers": "DROP"}

CONFIGS: dict[str, dict[str, Any]] = {
    "axk1": _LATENT,
    "axk2": _LATENT,
    "deepseek_v3": _LATENT,
    "mistral4": _LATENT | {"head_dim": 16},
    "esm": {"vocab_size": 300, "pad_token_id": 0, "mask_token_id": 4},
    "esmc": {"vocab_size": 300, "num_key_value_heads": 4},
    "funnel": {
        "block_sizes": [1, 1], "block_repeats": [1, 1], "num_decoder_layers": 1, "d_head": 8,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "jina_embeddings_v3": {"num_attention_heads": 4},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "input_size": 64},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 2},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "mobilebert": {
        "hidden_size": 32, "intra_bottleneck_size": 16, "true_hidden_size": 16, "embedding_size": 16,
        "num_feedforward_networks": 2,
    },
    "neomme": {"text_config": {"head_dim": 16}, "head_dim": 16},
    "perceiver": {
        "d_latents": 32, "d_model": 32, "num_latents": 8, "num_self_attends_per_block": 1, "vocab_size": 262,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "qk_channels": 32, "v_channels": 32,
    },
    "qwen3_5": {"text_config": _HYBRID},
    "qwen3_next": _HYBRID,
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 10], "attention_head_size": 8, "is_decoder": False,
        "attn_layers": ["local", "lsh"], "feed_forward_size": 48, "lsh_attn_chunk_length": 16, "num_hashes": 1,
        "local_attn_chunk_length": 16, "num_buckets": 4,
    },
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "markuplm": {"max_depth": 8, "xpath_unit_hidden_size": 8},
    "minimax": {"head_dim": 8, "block_size": 16},
    "efficientloftr": {
        "stage_num_blocks": [1, 1, 1, 1], "out_features": [8, 8, 16, 32], "hidden_size": 32, "num_attention_layers": 1,
        "num_attention_heads": 8, "coarse_matching_threshold": 0.0, "fine_matching_slice_dim": 4,
        "coarse_matching_border_removal": 0, "rope_parameters": "DROP",
        **dict.fromkeys(
            ("stage_in_channels", "stage_block_stride", "stage_block_out_channels", "stage_block_in_channels",
             "num_key_value_heads", "fine_fusion_dims", "intermediate_size"),
            "DROP",
        ),
    },
    "lightglue": {
        "keypoint_detector_config": _POINTS, "descriptor_dim": 32, "num_key_value_heads": 4, "filter_threshold": 0.0,
        "intermediate_size": 64,
    },
    "superglue": {
        "keypoint_detector_config": _POINTS, "keypoint_encoder_sizes": [8, 16], "gnn_layers_types": ["self", "cross"],
        "sinkhorn_iterations": 5,
    },
    "audio-spectrogram-transformer": {"num_mel_bins": 64, "max_length": 128},
    "sam": _SAM,
    "sam_hq": _SAM | {"mask_decoder_config": {"vit_dim": 32}},
    "clap": {
        "audio_config": {
            "patch_embeds_hidden_size": 8, "hidden_size": 64, "num_attention_heads": [2, 2, 2, 2],
            "num_hidden_layers": 4,
        },
    },
    "t5": {"decoder_start_token_id": 1},
    "gptj": {"rotary_dim": 4},
    "deepseek_v2": _LATENT | {"num_experts_per_tok": 2},
    "minicpm3": _LATENT,
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "zamba": _ZAMBA | {"mamba_dt_rank": 2, "n_mamba_heads": 2, "num_key_value_heads": 4},
    "zamba2": _ZAMBA | {
        "mamba_headdim": 8, "n_mamba_heads": 8, "kv_channels": 8, "num_query_groups": 4, "hybrid_layer_ids": [1, 3],
        "num_key_value_heads": 4, "chunk_size": 16, "mamba_d_state": 8, "adapter_rank": 8,
    },
    "align": {
        "vision_config": {
            "width_coefficient": 0.25, "depth_coefficient": 0.1, "in_channels": [32, 16, 24, 40, 80, 112, 192],
            "out_channels": [16, 24, 40, 80, 112, 192, 320], "hidden_dim": 80,
        },
        "projection_dim": 80,
    },
    "blip-2": {"qformer_config": {"use_qformer_text_input": True}, "num_query_tokens": 4},
    "xlnet": {"d_head": 8},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "detr": {"backbone_config": _ALL_STAGES},
    "conditional_detr": {"backbone_config": _ALL_STAGES},
    "dab-detr": {"backbone_config": _ALL_STAGES},
    "table-transformer": {"backbone_config": _ALL_STAGES},
    "deformable_detr": {"backbone_config": _RESNET, "num_feature_levels": 3},
    "d_fine": _RT_DETR | {"backbone_config": _HGNET},
    "deimv2": _RT_DETR | {"backbone_config": _HGNET},
    "rt_detr": _RT_DETR | {"backbone_config": _RT_RESNET},
    "rt_detr_v2": _RT_DETR | {"backbone_config": _RT_RESNET},
    "lw_detr": {
        "backbone_config": _VIT_BACKBONE | {"num_windows": 4, "num_windows_side": 2, "window_block_indices": [0, 2]},
        "group_detr": 1, "projector_scale_factors": [1.0], "projector_in_channels": "DROP",
        "num_feature_levels": "DROP",
    },
    "depth_anything": {"backbone_config": _VIT_BACKBONE | {"patch_size": 8}, "patch_size": 8},
    "prompt_depth_anything": {"backbone_config": _VIT_BACKBONE | {"patch_size": 8}, "patch_size": 8},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "beit": _VIT_BACKBONE,
    "data2vec-vision": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "mobilenet_v2": {"depth_multiplier": 0.25, "min_depth": 4},
    "mobilevitv2": {"base_attn_unit_dims": [16, 16, 16], "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1]},
    "mobilevit": {"aspp_out_channels": 16},
    "maskformer": {"backbone_config": _SWIN},
    "mask2former": {"backbone_config": _SWIN},
    "oneformer": {"backbone_config": _SWIN},
    "yolos": {"num_detection_tokens": 6},
}  # fmt: skip
"""Model type to values of its config, in every task."""
TASK_CONFIGS: dict[tuple[str, str], dict[str, Any]] = {
    ("image-segmentation", "detr"): {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
}
"""The same for one task only."""
_SQUARE = {"size": {"shortest_edge": 64, "longest_edge": 64}, "do_pad": True}
PROCESSORS: dict[str, dict[str, Any]] = {
    "eomt": _SQUARE,
    # With its own 128 bins transformers warns of filters that are zero.
    "audio-spectrogram-transformer": {"num_mel_bins": 64, "max_length": 128},
    "clap": {"truncation": "rand_trunc", "padding": "repeatpad"},
    "layoutlmv3": {"apply_ocr": False},
    "grounding-dino": {"size": {"shortest_edge": 96, "longest_edge": 160}},
    "mm-grounding-dino": {"size": {"shortest_edge": 96, "longest_edge": 160}},
    "eomt_dinov3": _SQUARE,
    "lw_detr": {"size": {"height": 64, "width": 64}},
}


def config(task: str, model_type: str) -> dict[str, Any]:
    """Return the values of the config of a model of this task."""
    return CONFIGS.get(model_type, {}) | TASK_CONFIGS.get((task, model_type), {})


def processor(task: str, model_type: str) -> dict[str, Any]:
    """Return the values of the image processor or feature extractor."""
    return PROCESSORS.get(model_type, {})
