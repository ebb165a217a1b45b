"""Make tiny InternVL models: tiles of an image, pixel shuffle, Qwen behind."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save, template
from tests.support.models.vision.tokenizers_b import make_tokenizer
from tests.support.models.vision.videos_b import make_processor

_VISION: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "image_size": [32, 32], "patch_size": [8, 8],
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
_TOKENS = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
_TOKENS_A_TILE = 4


def make_internvl(folder: Path) -> None:
    """Write an InternVL model; an image gives 4 tokens for each of its tiles."""
    tokenizer = make_tokenizer(**_TOKENS, video_token="<video>")
    config = transformers.InternVLConfig(
        vision_config=_VISION,
        text_config={**_TEXT, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=_TOKENS_A_TILE,
        tie_word_embeddings=False,
    )
    processor = make_processor(
        "InternVLProcessor", _tiles(), tokenizer, videos="InternVLVideoProcessor", image_seq_length=_TOKENS_A_TILE
    )
    save(folder, config, processor, template("<IMG_CONTEXT>\n"))


def make_qianfan_ocr(folder: Path) -> None:
    """Write a Qianfan-OCR model: InternVL with Qwen 3 and norms of queries and keys in the tower."""
    tokenizer = make_tokenizer("<image>", **_TOKENS)
    config = transformers.QianfanOCRConfig(
        vision_config={**_VISION, "use_qk_norm": True},
        text_config={**_TEXT, "model_type": "qwen3", "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=_TOKENS_A_TILE,
    )
    processor = transformers.QianfanOCRProcessor(_tiles(), tokenizer, image_seq_length=_TOKENS_A_TILE)
    save(folder, config, processor, template("<image>\n"))


def _tiles() -> Any:
    return transformers.GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, max_patches=3, crop_to_patches=True)
