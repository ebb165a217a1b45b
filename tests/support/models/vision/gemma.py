"""Make tiny models of the Gemma family: windows beside full attention, images that are read both ways."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, Gemma3ImageProcessorPil

from tests.support.models.vision.saving import Parts, save_model, save_processor
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

NAMES = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
TIED = 0.03
"""Embeddings that are the head too: small, or each token is followed by itself."""
MEANS = (("q_norm", 1.0), ("k_norm", 1.0), ("language_model.norm", 15.0))
"""Weights of norms, to which the model adds 1. Attention picks few tokens, and the logits are not small."""


def make_gemma3(folder: Path) -> None:
    """Write a model whose windows are shorter than an image, with one layer of three that sees all tokens."""
    tokenizer = make_tokenizer(tuple(NAMES.values()), bos=True, names=NAMES)
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16,
        "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 4, "vision_use_head": False,
    }  # fmt: skip
    config = AutoConfig.for_model(
        "gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=16, image_token_index=4,
        boi_token_index=5, eoi_token_index=6, eos_token_id=2,
    )  # fmt: skip
    save_model(folder, config, tokenizer, embedding=TIED, means=MEANS)
    images = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    template = chat_template("<start_of_image>", bos=True)
    save_processor(folder, Parts("Gemma3Processor", images, tokenizer, template, {"image_seq_length": 16}))


MAKERS = {"gemma3": make_gemma3}
