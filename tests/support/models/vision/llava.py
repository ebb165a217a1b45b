"""Make tiny models of the LLaVA family: a tower, a projector and a decoder, each of a type of its own."""

from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    LlavaImageProcessorPil,
    LlavaNextImageProcessorPil,
    LlavaOnevisionImageProcessorPil,
    VideoLlavaImageProcessor,
)

from tests.support.models.vision.saving import Parts, write
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

IMAGE, VIDEO = "<image>", "<video>"
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
    images = LlavaImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    settings = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    template = chat_template(IMAGE + "\n", bos=True)
    write(folder, config, Parts("LlavaProcessor", images, tokenizer, template, settings))


SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "image_size": 32, "patch_size": 8, "vision_use_head": False,
}  # fmt: skip
"""16 patches of an image."""
PINPOINTS = [[32, 64], [64, 32], [64, 64]]
"""Heights and widths to which an image is enlarged before it is cut into tiles of 32 pixels."""


def make_llava_next(folder: Path) -> None:
    """Write a model with tiles, each row of which ends with a learned feature."""
    tokenizer = make_tokenizer((IMAGE,), bos=True, names={"image_token": IMAGE})
    config = AutoConfig.for_model(
        "llava_next", text_config=text_config(tokenizer, "mistral", sliding_window=None),
        vision_config=CLIP | {"patch_size": 16}, image_token_index=4, image_seq_length=4,
        image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, image_grid_pinpoints=PINPOINTS
    )
    settings = {"patch_size": 16, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    template = chat_template(IMAGE + "\n", bos=True)
    write(folder, config, Parts("LlavaNextProcessor", images, tokenizer, template, settings))


def make_llava_onevision(folder: Path) -> None:
    """Write a model that cuts one image into tiles, and several not."""
    tokenizer = make_tokenizer((IMAGE, VIDEO), names={"image_token": IMAGE, "video_token": VIDEO})
    text = text_config(tokenizer, "qwen2")
    config = AutoConfig.for_model(
        "llava_onevision", text_config=text, vision_config=SIGLIP | {"patch_size": 16}, image_token_index=4,
        video_token_index=5, image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    images = LlavaOnevisionImageProcessorPil(size={"height": 32, "width": 32}, image_grid_pinpoints=PINPOINTS)
    settings = {"num_image_tokens": 4, "vision_feature_select_strategy": "full"}
    template = chat_template(IMAGE + "\n")
    videos, sizes = "LlavaOnevisionVideoProcessor", {"size": {"height": 32, "width": 32}}
    write(folder, config, Parts("LlavaOnevisionProcessor", images, tokenizer, template, settings, videos, sizes))


def make_vipllava(folder: Path) -> None:
    """Write a model whose projector reads several layers of the tower at once."""
    tokenizer = make_tokenizer((IMAGE,), bos=True, names={"image_token": IMAGE})
    config = AutoConfig.for_model(
        "vipllava", text_config=text_config(tokenizer), vision_config=CLIP, image_token_index=4, image_seq_length=16,
        vision_feature_layer=[-1, -2, 1],
    )  # fmt: skip
    images = LlavaImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    settings = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    write(folder, config, Parts("LlavaProcessor", images, tokenizer, chat_template(IMAGE + "\n", bos=True), settings))


def make_llava_next_video(folder: Path) -> None:
    """Write a model as LLaVA-NeXT is one, which reads videos too."""
    tokenizer = make_tokenizer((IMAGE, VIDEO), bos=True, names={"image_token": IMAGE, "video_token": VIDEO})
    config = AutoConfig.for_model(
        "llava_next_video", text_config=text_config(tokenizer), vision_config=CLIP | {"patch_size": 16},
        image_token_index=4, video_token_index=5, image_seq_length=4, image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, image_grid_pinpoints=PINPOINTS
    )
    settings = {"patch_size": 16, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    template = chat_template(IMAGE + "\n", bos=True)
    videos = ("LlavaNextVideoVideoProcessor", {"size": {"shortest_edge": 32}})
    write(folder, config, Parts("LlavaNextVideoProcessor", images, tokenizer, template, settings, *videos))


def make_video_llava(folder: Path) -> None:
    """Write a model with one tower for images and one for videos."""
    tokenizer = make_tokenizer((IMAGE, VIDEO), bos=True, names={"image_token": IMAGE, "video_token": VIDEO})
    config = AutoConfig.for_model(
        "video_llava", text_config=text_config(tokenizer), vision_config=CLIP, image_token_index=4,
        video_token_index=5, image_seq_length=17,
    )  # fmt: skip
    images = VideoLlavaImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    settings = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    template = chat_template(IMAGE + "\n", bos=True)
    videos = ("VideoLlavaVideoProcessor", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}})
    write(folder, config, Parts("VideoLlavaProcessor", images, tokenizer, template, settings, *videos))


MAKERS = {
    "llava": make_llava,
    "llava_next": make_llava_next,
    "llava_onevision": make_llava_onevision,
    "vipllava": make_vipllava,
    "llava_next_video": make_llava_next_video,
    "video_llava": make_video_llava,
}
