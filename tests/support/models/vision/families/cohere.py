"""Make tiny models of Cohere that read images."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save, save_parts, template
from tests.support.models.vision.tokenizers_b import make_tokenizer
from tests.support.models.vision.videos_b import make_processor

_COHERE2: dict[str, Any] = {
    "model_type": "cohere2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 512,
    "sliding_window": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "logit_scale": 0.25,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
_SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "image_size": 32, "patch_size": 8, "vision_use_head": False,
}  # fmt: skip


def make_aya_vision(folder: Path) -> None:
    """Write an Aya Vision model: tiles of 4 tokens, Cohere 2 with three sliding layers and a full one behind."""
    tokenizer = make_tokenizer(
        "<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL",
        *(f"TILE_{i}" for i in range(1, 4)),
    )  # fmt: skip
    config = transformers.AyaVisionConfig(
        vision_config=_SIGLIP,
        text_config={**_COHERE2, "vocab_size": len(tokenizer)},
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
    )
    images = transformers.GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, max_patches=3)
    processor = transformers.AyaVisionProcessor(images, tokenizer, patch_size=8, img_size=32, downsample_factor=2)
    save(folder, config, processor, template("<image>"))


def make_cohere_compass(folder: Path) -> None:
    """Write a Cohere Compass model: the tower of Qwen3-VL with one deep layer, positions of three axes."""
    marks = {
        "image_token": "<|IMAGE_PAD|>",
        "video_token": "<|VIDEO_PAD|>",
        "vision_start_token": "<|VISION_START|>",
        "vision_end_token": "<|VISION_END|>",
    }
    tokenizer = make_tokenizer(**marks)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    layers = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    config = transformers.CohereCompassConfig(
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8,
            "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        text_config={
            **{key: value for key, value in _COHERE2.items() if key not in ("model_type", "head_dim")},
            "vocab_size": len(tokenizer), "layer_types": layers, "tie_word_embeddings": False,
            "rope_parameters": {"sliding_attention": rope, "full_attention": rope},
        },
        tie_word_embeddings=False,
        **{f"{name}_id": getattr(tokenizer, f"{name}_id") for name in marks},
    )  # fmt: skip
    images = transformers.CohereCompassImageProcessorPil(
        size={"shortest_edge": 32 * 32, "longest_edge": 80 * 80}, patch_size=8, merge_size=2
    )
    processor = make_processor("CohereCompassProcessor", images, tokenizer, videos="CohereCompassVideoProcessor")
    save(folder, config, processor, template("<|VISION_START|><|IMAGE_PAD|><|VISION_END|>"))


def make_cohere2_vision(folder: Path) -> None:
    """Write a Command A Vision model: tiles of 4 tokens and the end of a line. Its processor needs torchvision."""
    tokenizer = make_tokenizer(
        boi_token="<|START_OF_IMG|>",
        eoi_token="<|END_OF_IMG|>",
        image_token="<|IMG_PATCH|>",
        img_line_break_token="<|IMG_LINE_BREAK|>",
    )
    config = transformers.Cohere2VisionConfig(
        vision_config=_SIGLIP,
        text_config={**_COHERE2, "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.image_token_id,
        alignment_intermediate_size=96,
    )
    images = {
        "image_processor_type": "Cohere2VisionImageProcessor",
        "size": {"height": 32, "width": 32},
        "patch_size": 2,  # the side of a tile in tokens
        "max_patches": 3,
    }
    processor = {"processor_class": "Cohere2VisionProcessor", "image_processor": images}
    save_parts(folder, config, tokenizer, template("<|IMG_PATCH|>"), processor)
