"""Make tiny models whose towers read images as grids of patches of any size."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save, template
from tests.support.models.vision.tokenizers_b import make_tokenizer
from tests.support.models.vision.videos_b import make_processor

_SIZE = {"shortest_edge": 32 * 32, "longest_edge": 80 * 80}
_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 8, "out_hidden_size": 64, "intermediate_size": 48,
    "window_size": 32, "fullatt_block_indexes": [1],
}  # fmt: skip
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def make_ernie4_5_vl_moe(folder: Path) -> None:
    """Write an ERNIE 4.5 VL model: experts of text and of images, a router for each."""
    names = {
        "image_token": "<|IMAGE_PLACEHOLDER|>",
        "image_start_token": "<|IMAGE_START|>",
        "image_end_token": "<|IMAGE_END|>",
        "video_token": "<|VIDEO_PLACEHOLDER|>",
        "video_start_token": "<|VIDEO_START|>",
        "video_end_token": "<|VIDEO_END|>",
    }
    tokenizer = make_tokenizer(**names)
    config = transformers.Ernie4_5_VLMoeConfig(
        vision_config={key: value for key, value in _VISION.items() if key in _ERNIE_VISION},
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "moe_intermediate_size": [32, 16], "moe_k": 2, "moe_num_experts": 4,
            "moe_num_shared_experts": 1, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
        },
        tie_word_embeddings=False,
        **{f"{name}_id": getattr(tokenizer, f"{name}_id") for name in names},
    )  # fmt: skip
    videos = ("Ernie4_5_VLMoeVideoProcessor", {"draw_on_frames": False})
    images = transformers.Ernie4_5_VLMoeImageProcessorPil(size=_SIZE, patch_size=8, merge_size=2)
    processor = make_processor("Ernie4_5_VLMoeProcessor", images, tokenizer, videos=videos)
    save(folder, config, processor, template("Picture: <|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"))


_ERNIE_VISION = ("depth", "hidden_size", "num_heads", "patch_size", "intermediate_size")


def make_exaone4_5(folder: Path) -> None:
    """Write an EXAONE 4.5 model: windows in the tower; sliding layers without, a full one with global positions."""
    tokenizer = make_tokenizer("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    config = transformers.Exaone4_5_Config(
        vision_config={**_VISION, "num_heads": 4, "hidden_size": 64, "num_key_value_heads": 2},
        text_config={
            **_TEXT, "model_type": "exaone4", "vocab_size": len(tokenizer), "num_hidden_layers": 4,
            "sliding_window": 16, "sliding_window_pattern": "LLLG",
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
    )  # fmt: skip
    images = transformers.Qwen2VLImageProcessorPil(size=_SIZE, patch_size=8, merge_size=2)
    processor = make_processor("Exaone4_5_Processor", images, tokenizer, videos="Qwen2VLVideoProcessor")
    save(folder, config, processor, template(_QWEN_IMAGE))


def make_hyperclovax_vision_v2(folder: Path) -> None:
    """Write a HyperCLOVA X Vision model: the tower of Qwen2.5-VL, norms behind the layers, scaled residuals."""
    tokenizer = make_tokenizer("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    config = transformers.HyperCLOVAXVisionV2Config(
        vision_config={"model_type": "qwen2_5_vl_vision", **_VISION},
        text_config={
            **_TEXT, "model_type": "hyperclovax", "vocab_size": len(tokenizer), "use_post_norm": True,
            "attention_multiplier": 0.25, "residual_multiplier": 0.8, "embedding_multiplier": 2.0,
            "logits_scaling": 0.5,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    images = transformers.Qwen2VLImageProcessorPil(size=_SIZE, patch_size=8, merge_size=2)
    processor = make_processor("HyperCLOVAXVisionV2Processor", images, tokenizer, videos="Qwen2VLVideoProcessor")
    save(folder, config, processor, template(_QWEN_IMAGE))


def make_hunyuan_vl(folder: Path) -> None:
    """Write a HunYuan VL model: positions of four axes, a token behind each row, two around an image."""
    names = {
        "image_token": "<|hy_place|>",
        "image_start_token": "<|hy_image_start|>",
        "image_end_token": "<|hy_image_end|>",
    }
    tokenizer = make_tokenizer("<|hy_newline|>", **names)
    config = transformers.HunYuanVLConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2,
            "out_hidden_size": 64, "text_hidden_size": 64, "patch_size": 8, "max_image_size": 64,
            "min_image_size": 16, "img_max_token_num": 64, "max_vit_seq_len": 256,
        },
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "eod_token_id": 2, "sep_token_id": 3,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 4.0, "factor": 1.0,
                "mrope_section": [2, 2, 2, 2],
            },
        },
        image_token_id=tokenizer.image_token_id,
        im_start_id=tokenizer.image_start_token_id,
        im_end_id=tokenizer.image_end_token_id,
        im_newline_id=tokenizer.convert_tokens_to_ids("<|hy_newline|>"),
    )  # fmt: skip
    images = transformers.HunYuanVLImageProcessorPil(size=_SIZE, patch_size=8, merge_size=2)
    processor = transformers.HunYuanVLProcessor(images, tokenizer)
    save(folder, config, processor, template("<|hy_image_start|><|hy_place|><|hy_image_end|>"))


def make_paddleocr_vl(folder: Path) -> None:
    """Write a PaddleOCR-VL model: SigLIP with rotated positions, ERNIE with three axes."""
    tokenizer = make_tokenizer(
        "<|IMAGE_START|>", "<|IMAGE_END|>", image_token="<|IMAGE_PLACEHOLDER|>", video_token="<|video_pad|>"
    )
    config = transformers.PaddleOCRVLConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 8,
        },
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        },
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|IMAGE_START|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|IMAGE_END|>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    images = transformers.PaddleOCRVLImageProcessorPil(size=_SIZE, patch_size=8, merge_size=2)
    processor = transformers.PaddleOCRVLProcessor(images, tokenizer)
    save(folder, config, processor, template("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"))


_MARKS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}


def make_cosmos3_edge(folder: Path) -> None:
    """Write a Cosmos 3 Edge model: SigLIP 2, a language model with squared ReLU."""
    tokenizer = make_tokenizer(**_MARKS)
    config = transformers.Cosmos3EdgeConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "patch_size": 8, "num_patches": 16,
        },
        text_config={**_TEXT, "vocab_size": len(tokenizer), "rope_parameters": _ROPE},
        projector_hidden_size=48,
        **{f"{name}_id": getattr(tokenizer, f"{name}_id") for name in _MARKS},
    )  # fmt: skip
    images = transformers.Cosmos3EdgeImageProcessorPil(size=_SIZE, patch_size=8, merge_size=2)
    processor = make_processor("Cosmos3EdgeProcessor", images, tokenizer, videos="Cosmos3EdgeVideoProcessor")
    save(folder, config, processor, template(_QWEN_IMAGE))


def make_cosmos3_omni(folder: Path) -> None:
    """Write a Cosmos 3 Omni model: the network of Qwen3-VL, with one deep layer of the tower."""
    tokenizer = make_tokenizer(**_MARKS)
    config = transformers.Cosmos3OmniConfig(
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8,
            "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        text_config={**_TEXT, "vocab_size": len(tokenizer), "rope_parameters": _ROPE},
        **{f"{name}_id": getattr(tokenizer, f"{name}_id") for name in _MARKS},
    )  # fmt: skip
    images = transformers.Qwen2VLImageProcessorPil(size=_SIZE, patch_size=8, merge_size=2)
    processor = make_processor("Qwen3VLProcessor", images, tokenizer, videos="Qwen3VLVideoProcessor")
    save(folder, config, processor, template(_QWEN_IMAGE))


def make_dots3_note(folder: Path) -> None:
    """Write a Dots 3 Note model: experts in the tower, attention to indexed keys and in a window, an audio tower."""
    tokenizer = make_tokenizer("<|img|>", "<|imgpad|>", "<|endofimg|>", "<|video_pad|>", "<|audio_comp_pad|>")
    config = transformers.Dots3NoteConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "patch_size": 8, "moe_intermediate_size": 24, "pyramid_num_routed": [-1, 2, 4], "adapter_in_dim": 32,
            "adapter_out_dim": 64,
        },
        audio_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
            "feature_size": 16, "downsample_hidden_size": 8, "adapter_input_size": 32, "adapter_out_dim": 64,
        },
        text_config={
            **_TEXT, "vocab_size": len(tokenizer), "num_hidden_layers": 4, "num_key_value_heads": 4,
            "moe_intermediate_size": 32, "shared_experts_intermediate_size": 32, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "qk_nope_head_dim": 8, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 2, "sliding_window": 16,
            "layer_types": ["indexed_attention", "sliding_attention", "sliding_attention", "indexed_attention"],
            **_DOTS_WINDOWS,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|imgpad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        audio_token_id=tokenizer.convert_tokens_to_ids("<|audio_comp_pad|>"),
    )  # fmt: skip
    processor = make_processor(
        "Dots3NoteProcessor",
        image_processor=transformers.Qwen2VLImageProcessorPil(
            size=_SIZE, patch_size=8, merge_size=2, temporal_patch_size=1
        ),
        tokenizer=tokenizer,
        feature_extractor=transformers.Dots3NoteFeatureExtractor(feature_size=16),
        videos="Qwen3VLVideoProcessor",
    )
    save(folder, config, processor, template("<|img|><|imgpad|><|endofimg|>"))


_DOTS_WINDOWS = {
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 32, "swa_kv_lora_rank": 32,
    "swa_head_dim": 16, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 16,
}  # fmt: skip
