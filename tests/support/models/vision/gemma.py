"""Make tiny models of the Gemma family: windows beside full attention, images that are read both ways."""

from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    Gemma3ImageProcessorPil,
    Gemma4AudioFeatureExtractor,
    Gemma4ImageProcessorPil,
    SiglipImageProcessorPil,
)
from transformers.models.paligemma.processing_paligemma import EXTRA_TOKENS

from tests.support.models.vision.llava import SIGLIP
from tests.support.models.vision.saving import Drawing, Parts, write
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
    images = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    template = chat_template("<start_of_image>", bos=True)
    write(
        folder,
        config,
        Parts("Gemma3Processor", images, tokenizer, template, {"image_seq_length": 16}),
        Drawing(TIED, MEANS),
    )


def make_paligemma(folder: Path) -> None:
    """Write a model that reads the whole prompt both ways. Its processor has tokens of locations and segments."""
    image = "<image>"
    tokenizer = make_tokenizer((image,), bos=True, names={"image_token": image})
    tokenizer.add_tokens(EXTRA_TOKENS)
    text: dict[str, Any] = {
        "model_type": "gemma2", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "query_pre_attn_scalar": 16, "sliding_window": 64, "max_position_embeddings": 2048, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    vision = SIGLIP | {"projection_dim": 64}
    config = AutoConfig.for_model(
        "paligemma", text_config=text, vision_config=vision, image_token_index=4, vocab_size=len(tokenizer),
        projection_dim=64, hidden_size=64,
    )  # fmt: skip
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    write(
        folder,
        config,
        Parts("PaliGemmaProcessor", images, tokenizer, chat_template(image)),
        Drawing(TIED, (("language_model.norm", 15.0),)),
    )


GEMMA4_NAMES = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
    "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip


def _gemma4_text(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """Return the sizes of a decoder: layers with all tokens have larger heads, and fewer of them."""
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
        "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
        "vocab_size_per_layer_input": len(tokenizer), "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
    }  # fmt: skip
    return sizes | changes


def make_gemma4(folder: Path) -> None:
    """Write a model with embeddings for each layer, and layers that read the keys and values of earlier ones."""
    tokenizer = make_tokenizer((*GEMMA4_NAMES.values(), "<|video|>"), bos=True, names=GEMMA4_NAMES)
    vision: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 3,
        "position_embedding_size": 256, "standardize": True,
    }  # fmt: skip
    config = AutoConfig.for_model(
        "gemma4", text_config=_gemma4_text(tokenizer), vision_config=vision, image_token_id=4, boi_token_id=5,
        eoi_token_id=6, audio_token_id=7, boa_token_id=8, eoa_token_index=9, video_token_id=10,
    )  # fmt: skip
    images = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=3, max_soft_tokens=70)
    sounds = Gemma4AudioFeatureExtractor()
    parts = Parts(
        "Gemma4Processor", images, tokenizer, chat_template("<|image|>", bos=True), {"image_seq_length": 70},
        "Gemma4VideoProcessor", {"patch_size": 4, "pooling_kernel_size": 3}, {"feature_extractor": sounds},
    )  # fmt: skip
    means = (("q_norm", 1.5), ("k_norm", 1.5), ("language_model.norm", 15.0))
    write(folder, config, parts, Drawing(TIED, means))


MAKERS = {"gemma3": make_gemma3, "paligemma": make_paligemma, "gemma4": make_gemma4}
