"""Make tiny MiniCPM-V models: an image and its slices, merged twice, Qwen 3.5 behind."""

from pathlib import Path
from typing import Any

import transformers

from tests.support.models.vision.saving_b import save, save_parts, template
from tests.support.models.vision.tokenizers_b import make_tokenizer
from tests.support.models.vision.videos_b import make_processor

_NAMES = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 4,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}  # fmt: skip


def make_minicpmv4_6(folder: Path) -> None:
    """Write a MiniCPM-V 4.6 model."""
    _make(folder, "MiniCPMV4_6")


def make_minicpmv4_7(folder: Path) -> None:
    """Write a MiniCPM-V 4.7 model: positions of slices on the canvas of the image."""
    marks = {"image_start_id": "<image>", "image_end_id": "</image>"}
    marks |= {"slice_start_id": "<slice>", "slice_end_id": "</slice>", "newline_id": "Ċ"}
    _make(folder, "MiniCPMV4_7", **marks)


def _make(folder: Path, name: str, **marks: str) -> None:
    """Write a model. `marks`: fields of its config, with the tokens whose ids they are."""
    tokenizer = make_tokenizer(**_NAMES)
    config = getattr(transformers, f"{name}Config")(
        vision_config=_VISION,
        text_config={**_TEXT, "vocab_size": len(tokenizer)},
        insert_layer_id=0,
        image_size=32,
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        **{key: tokenizer.convert_tokens_to_ids(token) for key, token in marks.items()},
    )
    images = transformers.MiniCPMV4_6ImageProcessorPil(scale_resolution=32, patch_size=4, max_slice_nums=4)
    processor = make_processor(f"{name}Processor", images, tokenizer=tokenizer, videos="MiniCPMV4_6VideoProcessor")
    save(folder, config, processor, template("<|image_pad|>\n"))


def make_minicpm_ocr(folder: Path) -> None:
    """Write a MiniCPM OCR model. Its processor needs torchvision."""
    tokenizer = make_tokenizer(**_NAMES)
    config = transformers.MiniCPMOcrConfig(
        vision_config=_VISION,
        text_config={**_TEXT, "vocab_size": len(tokenizer)},
        insert_layer_id=0,
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        tie_word_embeddings=False,
    )
    images = {"image_processor_type": "MiniCPMOcrImageProcessor", "scale_resolution": 32, "patch_size": 4}
    processor = {
        "processor_class": "MiniCPMOcrProcessor",
        "image_processor": {**images, "max_slice_nums": 2},
        "video_processor": {"video_processor_type": "MiniCPMOcrVideoProcessor"},
    }
    save_parts(folder, config, tokenizer, template("<|image_pad|>\n"), processor)
