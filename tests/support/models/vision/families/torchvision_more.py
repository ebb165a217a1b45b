"""Make more tiny models whose processors need torchvision."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save_parts, template
from tests.support.models.vision.tokenizers_b import make_tokenizer

_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_SLIDING_AND_FULL = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
_VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8,
}  # fmt: skip


def make_step3p7(folder: Path) -> None:
    """Write a Step 3.7 model: an image and its crops; sliding layers with more heads, experts."""
    tokenizer = make_tokenizer(
        "<im_patch>", "<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"
    )
    config = transformers.Step3p7Config(
        vision_config={**_VISION, "patch_size": 4, "image_size": 48, "max_position_embeddings": 144},
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "layer_types": _SLIDING_AND_FULL, "sliding_window": 16,
            "num_sliding_attention_heads": 6, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "moe_intermediate_size": 32, "n_routed_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
            "share_expert_dim": 32, "moe_router_scaling_factor": 1.5,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<im_patch>"),
    )  # fmt: skip
    images = {
        "image_processor_type": "Step3p7ImageProcessor", "size": {"height": 48, "width": 48}, "patch_size": 32,
        "vision_patch_size": 4,
    }  # fmt: skip
    processor = {"processor_class": "Step3p7Processor", "image_processor": images}
    save_parts(folder, config, tokenizer, template("<im_patch>"), processor)


def make_muse_glimmer(folder: Path) -> None:
    """Write a Muse Glimmer model: windows in the tower, sliding layers, a full one without positions, a soft cap."""
    marks = (
        "<|patch|>", "<|video|>", "<|image_start|>", "<|image_end|>", "<|vid_frame_separator|>", "<|vid_start|>",
        "<|vid_end|>",
    )  # fmt: skip
    tokenizer = make_tokenizer(*marks)
    image, video = tokenizer.convert_tokens_to_ids(list(marks[:2]))
    config = transformers.MuseGlimmerConfig(
        vision_config={
            **_VISION, "num_hidden_layers": 3, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16,
            "layer_types": ["window_attention", "window_attention", "full_attention"],
        },
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "layer_types": _SLIDING_AND_FULL, "sliding_window": 16,
            "output_multiplier": 1.0,
        },
        image_token_id=image,
        video_token_id=video,
        out_hidden_size=128,
        projector_hidden_size=48,
    )  # fmt: skip
    processor = {
        "processor_class": "MuseGlimmerProcessor",
        "image_processor": {
            "image_processor_type": "MuseGlimmerImageProcessor", "patch_size": 8, "max_image_tokens": 24,
        },
        "video_processor": {"video_processor_type": "MuseGlimmerVideoProcessor", "patch_size": 8},
    }  # fmt: skip
    save_parts(folder, config, tokenizer, template("<|patch|>"), processor)


def make_unlimited_ocr(folder: Path) -> None:
    """Write an Unlimited-OCR model: SAM, then CLIP; a window over the text beside the whole image, experts."""
    tokenizer = make_tokenizer(image_token="<image>")
    config = transformers.UnlimitedOcrConfig(
        vision_config={
            "sam_config": {
                "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 64, "patch_size": 4, "window_size": 7, "global_attn_indexes": [1], "mlp_dim": 48,
                "downsample_channels": [24, 32],
            },
            "encoder_config": {**_VISION, "image_size": 64, "patch_size": 16},
        },
        text_config={
            **{key: value for key, value in _TEXT.items() if key != "head_dim"}, "vocab_size": len(tokenizer),
            "num_hidden_layers": 3, "sliding_window": 16, "n_routed_experts": 4, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        },
        image_token_id=tokenizer.image_token_id,
    )  # fmt: skip
    images = {
        "image_processor_type": "UnlimitedOcrImageProcessor", "size": {"height": 64, "width": 64}, "tile_size": 48,
        "max_patches": 4,
    }  # fmt: skip
    processor = {"processor_class": "UnlimitedOcrProcessor", "patch_size": 4, "image_processor": images}
    save_parts(folder, config, tokenizer, template("<image>"), processor)


def make_inkling2(folder: Path) -> None:
    """Write an Inkling 2 model: relative positions, short convolutions, residuals between blocks, experts."""
    tokenizer = make_tokenizer("<|content_image|>", image_token="<|unused_200054|>")
    config = transformers.Inkling2Config(
        vision_config={**_VISION, "posemb_grid_size": 4, "projection_hidden_dim": 48, "text_hidden_size": 64},
        text_config={
            **{key: value for key, value in _TEXT.items() if key != "intermediate_size"},
            "vocab_size": len(tokenizer), "unpadded_vocab_size": len(tokenizer), "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2, "swa_head_dim": 16, "sliding_window_size": 16, "d_rel": 8, "rel_extent": 64,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"], "moe_intermediate_size": 32,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "n_layers_per_attn_res_block": 2, "route_scale": 1.5,
            "log_scaling_n_floor": 32,
        },
        image_token_id=tokenizer.image_token_id,
    )  # fmt: skip
    images = {"image_processor_type": "Inkling2ImageProcessor", "size": {"height": 16, "width": 16}}
    processor = {"processor_class": "Inkling2Processor", "image_processor": images}
    save_parts(folder, config, tokenizer, template("<|content_image|><|unused_200054|>"), processor)
