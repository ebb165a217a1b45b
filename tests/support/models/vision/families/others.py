"""Make tiny models that read images: a tower, a projection and a language model, each in its own way."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save, template
from tests.support.models.vision.tokenizers_b import make_tokenizer

_LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 512,
}  # fmt: skip
_SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "image_size": 32, "patch_size": 8, "vision_use_head": False,
}  # fmt: skip


def make_deepseek_vl(folder: Path) -> None:
    """Write a DeepSeek-VL model: 16 tokens an image."""
    tokenizer = make_tokenizer(image_token="<image_placeholder>")
    config = transformers.DeepseekVLConfig(
        vision_config=_SIGLIP,
        text_config={**_LLAMA, "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )
    images = transformers.DeepseekVLImageProcessorPil(size={"height": 32, "width": 32}, min_size=8)
    processor = transformers.DeepseekVLProcessor(images, tokenizer, num_image_tokens=16)
    save(folder, config, processor, template("<image_placeholder>"))


def make_deepseek_vl_hybrid(folder: Path) -> None:
    """Write a DeepSeek-VL model of two towers: SigLIP, and SAM that reads the image in a higher resolution."""
    tokenizer = make_tokenizer(image_token="<image_placeholder>")
    config = transformers.DeepseekVLHybridConfig(
        vision_config=_SIGLIP,
        high_res_vision_config={
            "model_type": "sam_vision_model", "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 64, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1],
            "mlp_dim": 48, "num_pos_feats": 8,
        },
        text_config={**_LLAMA, "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    images = transformers.DeepseekVLHybridImageProcessorPil(
        size={"height": 32, "width": 32}, high_res_size={"height": 64, "width": 64}, min_size=8
    )
    processor = transformers.DeepseekVLHybridProcessor(images, tokenizer, num_image_tokens=16)
    save(folder, config, processor, template("<image_placeholder>"))


def make_ovis2(folder: Path) -> None:
    """Write an Ovis 2 model: an image becomes words of a visual vocabulary; 4 for each tile."""
    marks = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    tokenizer = make_tokenizer("<image>", "<IMG_ATOM>", *marks)
    config = transformers.Ovis2Config(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 8, "vocab_size": 64, "hidden_stride": 2,
        },
        text_config={**_LLAMA, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(list(marks)),
        vocab_size=len(tokenizer),
        hidden_size=64,
    )  # fmt: skip
    images = transformers.Ovis2ImageProcessorPil(size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=3)
    processor = transformers.Ovis2Processor(images, tokenizer, image_seq_length=4)
    save(folder, config, processor, template("<image>\n"))
