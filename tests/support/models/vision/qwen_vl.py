"""Make tiny models of the Qwen-VL family: positions of three axes, towers of patches that are merged."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, Qwen2VLImageProcessorPil

from tests.support.models.vision.saving import Parts, save_model, save_processor
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = chat_template("<|vision_start|><|image_pad|><|vision_end|>")


def token_ids(tokenizer: Any) -> dict[str, int]:
    """Return the ids that a config names."""
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in zip(names, TOKENS, strict=True)}


def text_config(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """Return the sizes of a decoder."""
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    return sizes | changes


def images(patch: int = 8, **changes: Any) -> Any:
    """Return a processor of images with patches of this many pixels."""
    settings: dict[str, Any] = {
        "patch_size": patch, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 4 * patch * patch, "longest_edge": 4096},
    }  # fmt: skip
    return Qwen2VLImageProcessorPil(**(settings | changes))


def make_qwen2_5_vl(folder: Path) -> None:
    """Write a model whose tower has windows, and layers with all patches."""
    tokenizer = make_tokenizer(TOKENS)
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8, "window_size": 32,
        "out_hidden_size": 64, "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = AutoConfig.for_model(
        "qwen2_5_vl", text_config=text_config(tokenizer), vision_config=vision, **token_ids(tokenizer)
    )
    save_model(folder, config, tokenizer)
    save_processor(folder, Parts("Qwen2_5_VLProcessor", images(), tokenizer, TEMPLATE, videos="Qwen2VLVideoProcessor"))


def make_qwen3_vl(folder: Path) -> None:
    """Write a model with layers of the decoder that add features of early layers of the tower."""
    tokenizer = make_tokenizer(TOKENS)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8,
        "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
    config = AutoConfig.for_model(
        "qwen3_vl",
        text_config=text_config(tokenizer, head_dim=16, rope_parameters=rope),
        vision_config=vision,
        **token_ids(tokenizer),
    )
    save_model(folder, config, tokenizer)
    save_processor(folder, Parts("Qwen3VLProcessor", images(), tokenizer, TEMPLATE, videos="Qwen3VLVideoProcessor"))


MAKERS = {"qwen2_5_vl": make_qwen2_5_vl, "qwen3_vl": make_qwen3_vl}
