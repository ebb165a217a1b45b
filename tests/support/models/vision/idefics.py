"""Make tiny models of the Idefics family, which cuts images into tiles."""

from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    GraniteDoclingImageProcessorPil,
    Idefics2ImageProcessorPil,
    Idefics3ImageProcessorPil,
    IdeficsImageProcessorPil,
    SmolVLMImageProcessorPil,
)

from tests.support.models.vision.llava import text_config
from tests.support.models.vision.saving import Drawing, Parts, write
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>", *ROWS)
NAMES = {
    "image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}  # fmt: skip
TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
"""16 patches of a tile; four become one token."""
TILES: dict[str, Any] = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
SETTINGS = {"image_seq_len": 4}


def make_smolvlm(folder: Path) -> None:
    """Write a model with tiles of 32 pixels, before each of which stand its row and column."""
    tokenizer = make_tokenizer(TOKENS, names=NAMES)
    config = AutoConfig.for_model(
        "smolvlm", text_config=text_config(tokenizer), vision_config=TOWER, image_token_id=4, scale_factor=2,
        pad_token_id=0,
    )  # fmt: skip
    images = SmolVLMImageProcessorPil(**TILES)
    template = chat_template("<image>", bos=True)
    videos = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 32}, "num_frames": 4, "fps": 1}
    write(
        folder,
        config,
        Parts("SmolVLMProcessor", images, tokenizer, template, SETTINGS, "SmolVLMVideoProcessor", videos),
    )


def make_idefics3(folder: Path) -> None:
    """Write a model as SmolVLM is one, for images only."""
    tokenizer = make_tokenizer(TOKENS, names=NAMES)
    config = AutoConfig.for_model(
        "idefics3", text_config=text_config(tokenizer), vision_config=TOWER, image_token_id=4, scale_factor=2,
        pad_token_id=0,
    )  # fmt: skip
    images = Idefics3ImageProcessorPil(**TILES)
    template = chat_template("<image>", bos=True)
    write(folder, config, Parts("Idefics3Processor", images, tokenizer, template, SETTINGS))


def make_idefics2(folder: Path) -> None:
    """Write a model whose tower reads images in their own shape, and whose learned queries read the tower."""
    names = {"image_token": "<image>", "image_boundary_token": "<fake_token_around_image>"}
    tokenizer = make_tokenizer((*names.values(), "<end_of_utterance>"), bos=True, names=names)
    perceiver = {
        "hidden_size": 64, "resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 4,
        "resampler_head_dim": 16, "num_key_value_heads": 2,
    }  # fmt: skip
    config = AutoConfig.for_model(
        "idefics2", text_config=text_config(tokenizer, "mistral", sliding_window=None),
        vision_config=TOWER | {"image_size": 64}, perceiver_config=perceiver, image_token_id=4,
    )  # fmt: skip
    images = Idefics2ImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64}, do_image_splitting=True)
    template = chat_template("<image>", bos=True)
    write(folder, config, Parts("Idefics2Processor", images, tokenizer, template, SETTINGS))


def make_granite_docling(folder: Path) -> None:
    """Write a model whose decoder adds features of an early layer of the tower."""
    tokenizer = make_tokenizer(TOKENS, names=NAMES)
    text = text_config(
        tokenizer, "granite_docling_text", embedding_multiplier=4.0, residual_multiplier=0.5,
        attention_multiplier=0.25, logits_scaling=2.0,
    )  # fmt: skip
    del text["head_dim"]
    vision = TOWER | {
        "num_hidden_layers": 3, "out_hidden_size": 64, "scale_factor": 2, "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
    config = AutoConfig.for_model(
        "granite_docling", text_config=text, vision_config=vision, image_token_id=4, tie_word_embeddings=False,
        pad_token_id=0,
    )  # fmt: skip
    images = GraniteDoclingImageProcessorPil(size={"height": 32, "width": 32}, max_patches=4)
    parts = Parts("GraniteDoclingProcessor", images, tokenizer, chat_template("<image>"), SETTINGS)
    write(folder, config, parts, Drawing(0.1))


def make_idefics(folder: Path) -> None:
    """Write a model with layers of cross attention before each layer, whose gates would begin at zero."""
    tokenizer = make_tokenizer(bos=True)
    size = len(tokenizer)
    tokenizer.add_tokens(["<fake_token_around_image>", "<image>"], special_tokens=True)  # the last two
    vision = {
        "embed_dim": 32, "image_size": 32, "intermediate_size": 48, "patch_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }  # fmt: skip
    perceiver = {
        "use_resampler": True, "resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2,
        "resampler_head_dim": 16,
    }  # fmt: skip
    config = AutoConfig.for_model(
        "idefics", vocab_size=size, additional_vocab_size=2, hidden_size=64, intermediate_size=96,
        num_hidden_layers=2, num_attention_heads=4, cross_layer_interval=1, alpha_type="vector", use_resampler=True,
        qk_layer_norms=True, vision_config=vision, perceiver_config=perceiver, bos_token_id=1, eos_token_id=2,
        pad_token_id=0,
    )  # fmt: skip
    images = IdeficsImageProcessorPil(size={"height": 32, "width": 32}, image_size=32)
    write(
        folder, config, Parts("IdeficsProcessor", images, tokenizer, chat_template("")),
        Drawing(means=(("alpha_", 0.7),)),
    )  # fmt: skip


MAKERS = {
    "idefics": make_idefics,
    "smolvlm": make_smolvlm,
    "idefics3": make_idefics3,
    "idefics2": make_idefics2,
    "granite_docling": make_granite_docling,
}
