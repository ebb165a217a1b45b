"""Make tiny models that were trained to read documents, and their relatives."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save, template
from tests.support.models.vision.tokenizers_b import make_tokenizer

_QWEN2: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 1024,
}  # fmt: skip


def make_got_ocr2(folder: Path) -> None:
    """Write a GOT-OCR 2 model. Its processor writes 256 tokens an image, whatever its config says."""
    tokenizer = make_tokenizer("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<imgpad>")
    config = transformers.GotOcr2Config(
        vision_config=_sam_like(),
        text_config={**_QWEN2, "vocab_size": len(tokenizer)},
        image_token_index=tokenizer.convert_tokens_to_ids("<imgpad>"),
        image_seq_length=256,
    )
    images = transformers.GotOcr2ImageProcessorPil(size={"height": 128, "width": 128})
    processor = transformers.GotOcr2Processor(images, tokenizer)
    save(folder, config, processor, template("<img><imgpad></img>\n"))


def _sam_like() -> dict[str, Any]:
    """Return the tower of GOT-OCR 2: a layer of windows, a layer over the whole image."""
    return {
        "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 128,
        "patch_size": 2, "window_size": 14, "global_attn_indexes": [1], "mlp_dim": 48,
    }  # fmt: skip


def make_pp_chart2table(folder: Path) -> None:
    """Write a PP-Chart2Table model: GOT-OCR 2 whose chat template writes all tokens of the image."""
    tokenizer = make_tokenizer("<img>", "</img>", "<imgpad>")
    config = transformers.PPChart2TableConfig(
        vision_config={**_sam_like(), "image_size": 64, "patch_size": 4, "window_size": 7},
        text_config={**_QWEN2, "vocab_size": len(tokenizer)},
        image_token_index=tokenizer.convert_tokens_to_ids("<imgpad>"),
        image_seq_length=16,
    )
    images = transformers.PPChart2TableImageProcessorPil(size={"height": 64, "width": 64})
    processor = transformers.PPChart2TableProcessor(images, tokenizer)
    save(folder, config, processor, template("<img>" + "<imgpad>" * 16 + "</img>\n"))


def make_deepseek_ocr2(folder: Path) -> None:
    """Write a DeepSeek-OCR 2 model: SAM, an encoder with 144 queries a tile and 256 an image, experts behind."""
    tokenizer = make_tokenizer(image_token="<image>")
    config = transformers.DeepseekOcr2Config(
        vision_config={
            "sam_config": {
                "hidden_size": 16, "output_channels": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 64, "patch_size": 1, "window_size": 14, "global_attn_indexes": [1], "mlp_dim": 24,
                "downsample_channels": [16, 32],
            },
            "encoder_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 1, "max_position_embeddings": 1024, "vocab_size": 16,
            },
        },
        text_config={
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 96, "max_position_embeddings": 4096, "vocab_size": len(tokenizer),
            "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "mlp_layer_types": ["dense", "sparse"],
        },
        image_token_id=tokenizer.image_token_id,
    )  # fmt: skip
    images = transformers.DeepseekOcr2ImageProcessorPil(size={"height": 64, "width": 64}, tile_size=48)
    processor = transformers.DeepseekOcr2Processor(images, tokenizer, patch_size=1, downsample_ratio=4)
    save(folder, config, processor, template("<image>\n"))
