"""Make tiny models of the LLaVA family: a tower, a projector and a decoder, each of a type of its own."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlavaImageProcessorPil

from tests.support.models.vision.saving import Parts, save_model, save_processor
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

IMAGE = "<image>"
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 2, "image_size": 32, "patch_size": 8, "projection_dim": 32,
}  # fmt: skip
"""16 patches of an image."""


def text_config(tokenizer: Any, model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return the sizes of a decoder."""
    sizes: dict[str, Any] = {
        "model_type": model_type, "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 2048, "bos_token_id": tokenizer.bos_token_id, "pad_token_id": 0,
        "eos_token_id": tokenizer.eos_token_id, "tie_word_embeddings": False,
    }  # fmt: skip
    return sizes | changes


def make_llava(folder: Path) -> None:
    """Write a model that reads the patches of the second but last layer of CLIP, without its first token."""
    tokenizer = make_tokenizer((IMAGE,), bos=True, names={"image_token": IMAGE})
    config = AutoConfig.for_model(
        "llava", text_config=text_config(tokenizer), vision_config=CLIP, image_token_index=4, image_seq_length=16
    )
    save_model(folder, config, tokenizer)
    images = LlavaImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    settings = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    template = chat_template(IMAGE + "\n", bos=True)
    save_processor(folder, Parts("LlavaProcessor", images, tokenizer, template, settings))


MAKERS = {"llava": make_llava}
