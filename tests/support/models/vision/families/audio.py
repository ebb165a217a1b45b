"""Make tiny models that read images, sound and text. Their processors need torchvision."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save_parts, template
from tests.support.models.vision.tokenizers_b import make_tokenizer


def make_phi4_multimodal(folder: Path) -> None:
    """Write a Phi-4 multimodal model: 256 tokens an image, then its crops with separators, a Conformer for sound."""
    tokenizer = make_tokenizer(image_token="<|image|>", audio_token="<|audio|>")
    config = transformers.Phi4MultimodalConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "image_size": 64, "crop_size": 64, "patch_size": 2, "image_token_id": tokenizer.image_token_id,
        },
        audio_config={
            "hidden_size": 32, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 2,
            "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 16,
            "audio_token_id": tokenizer.audio_token_id,
        },
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, original_max_position_embeddings=64, sliding_window=64,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64, "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5],
            "long_factor": [1.0, 1.2, 1.6, 2.4, 4.0, 8.0],
        },
    )  # fmt: skip
    processor = {
        "processor_class": "Phi4MultimodalProcessor",
        "image_processor": {
            "image_processor_type": "Phi4MultimodalImageProcessor", "size": {"height": 64, "width": 64},
            "patch_size": 2, "dynamic_hd": 4,
        },
        "audio_processor": {"feature_extractor_type": "Phi4MultimodalFeatureExtractor"},
    }  # fmt: skip
    save_parts(folder, config, tokenizer, template("<|image|>"), processor)


_TEXT: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def make_muse_spark(folder: Path) -> None:
    """Write a Muse Spark model: the tower of Muse Glimmer, experts, gates of residuals, a tower for sound."""
    marks = (
        "<|patch|>", "<|video|>", "<|audio|>", "<|image_start|>", "<|image_end|>", "<|vid_frame_separator|>",
        "<|vid_start|>", "<|vid_end|>", "<|soft_audio_start|>", "<|soft_audio_end|>",
    )  # fmt: skip
    tokenizer = make_tokenizer(*marks)
    image, video, sound = tokenizer.convert_tokens_to_ids(list(marks[:3]))
    config = transformers.MuseSparkConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "patch_size": 8, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16,
            "layer_types": ["window_attention", "window_attention", "full_attention"],
        },
        text_config={
            **_TEXT, "intermediate_size": 96, "vocab_size": len(tokenizer), "sliding_window": 16,
            "output_multiplier": 1.0, "moe_intermediate_size": 32, "moe_hidden_size": 32, "num_local_experts": 4,
            "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        audio_config={"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "out_hidden_size": 64},
        image_token_id=image,
        video_token_id=video,
        audio_token_id=sound,
        out_hidden_size=128,
        projector_hidden_size=48,
    )  # fmt: skip
    images = {"image_processor_type": "MuseGlimmerImageProcessor", "patch_size": 8, "max_image_tokens": 24}
    processor = {
        "processor_class": "MuseSparkProcessor",
        "image_processor": images,
        "video_processor": {"video_processor_type": "MuseGlimmerVideoProcessor", "patch_size": 8},
        "feature_extractor": {"feature_extractor_type": "MuseSparkFeatureExtractor"},
    }
    save_parts(folder, config, tokenizer, template("<|patch|>"), processor)


def make_inkling_mm_model(folder: Path) -> None:
    """Write an Inkling model: patches that are folded, relative positions, short convolutions, experts, sound."""
    tokenizer = make_tokenizer("<|unused_200054|>", "<|unused_200053|>", "<|content_image|>", "<|content_audio_input|>")
    image, sound, image_start, sound_start = tokenizer.convert_tokens_to_ids(
        ["<|unused_200054|>", "<|unused_200053|>", "<|content_image|>", "<|content_audio_input|>"]
    )
    config = transformers.InklingConfig(
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "patch_size": 16,
            "text_hidden_size": 64,
        },
        audio_config={"n_mel_bins": 80, "mel_vocab_size": 16, "text_hidden_size": 64},
        text_config={
            **_TEXT, "intermediate_size": 96, "vocab_size": len(tokenizer), "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2, "swa_head_dim": 16, "sliding_window_size": 16, "d_rel": 8, "rel_extent": 64,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"], "moe_intermediate_size": 32,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "n_routed_experts": 4, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "route_scale": 1.5, "logits_mup_width_multiplier": 1.0,
            "log_scaling_n_floor": 32,
        },
        image_token_id=image,
        audio_token_id=sound,
        image_bos_token_id=image_start,
        audio_bos_token_id=sound_start,
    )  # fmt: skip
    processor = {
        "processor_class": "InklingProcessor",
        "image_processor": {"image_processor_type": "InklingImageProcessor", "size": {"height": 16, "width": 16}},
        "feature_extractor": {"feature_extractor_type": "InklingFeatureExtractor"},
    }
    save_parts(folder, config, tokenizer, template("<|content_image|><|unused_200054|>"), processor)


def make_nemotron_h_omni(folder: Path) -> None:
    """Write a Nemotron Omni model: RADIO; Mamba 2, attention and experts by layers; Parakeet for sound."""
    tokenizer = make_tokenizer("<image>", "<video>", "<so_embedding>", "<so_start>", "<so_end>", "<img>", "</img>")
    image, video, sound = tokenizer.convert_tokens_to_ids(["<image>", "<video>", "<so_embedding>"])
    config = transformers.NemotronH_Omni_Reasoning_V3_Config(
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2.0, "patch_size": 8,
            "image_size": 32, "max_img_size": 128, "num_cls_tokens": 2, "num_registers": 2,
            "video_temporal_patch_size": 2,
        },
        audio_config={
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
            "subsampling_conv_channels": 8, "projection_hidden_size": 48, "projection_bias": False,
        },
        text_config={
            **{key: value for key, value in _TEXT.items() if key != "num_hidden_layers"}, "intermediate_size": 96,
            "vocab_size": len(tokenizer), "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
            "ssm_state_size": 16, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 16,
            "n_routed_experts": 4, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
            "num_experts_per_tok": 2, "expand": 1,
        },
        projector_hidden_size=48,
        vision_hidden_size=32,
        image_token_id=image,
        video_token_id=video,
        audio_token_id=sound,
    )  # fmt: skip
    processor = {
        "processor_class": "NemotronH_Omni_Reasoning_V3Processor",
        "image_processor": {
            "image_processor_type": "NemotronH_Omni_Reasoning_V3ImageProcessor", "patch_size": 8,
            "min_num_patches": 16, "max_num_patches": 64, "max_model_len": 256,
        },
        "video_processor": {"video_processor_type": "NemotronH_Omni_Reasoning_V3VideoProcessor"},
        "feature_extractor": {"feature_extractor_type": "ParakeetFeatureExtractor"},
    }  # fmt: skip
    save_parts(folder, config, tokenizer, template("<image>\n"), processor)
