"""Make tiny models that turn an image into tokens of a codebook, and one that reads and writes images."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, ChameleonImageProcessorPil, Emu3ImageProcessor, JanusImageProcessorPil

from tests.support.models.vision.llava import text_config
from tests.support.models.vision.saving import Parts, write
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

CODES = 64
"""Entries of a codebook."""


def make_chameleon(folder: Path) -> None:
    """Write a model that reads 16 codes of an image as tokens of its vocabulary."""
    names = {"image_token": "<image>", "boi_token": "<racm3:break>", "eoi_token": "<eoss>"}
    letters = str.maketrans("0123456789", "ABCDEFGHIJ")
    codes = tuple(f"IMGIMG{str(number).translate(letters)}Z" for number in range(CODES))
    tokenizer = make_tokenizer((*names.values(), "<sep>", *codes), bos=True, names=names, sep_token="<sep>")
    vq = {
        "embed_dim": 16, "num_embeddings": CODES, "latent_channels": 16, "resolution": 32, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1], "num_res_blocks": 1, "attn_resolutions": [4],
    }  # fmt: skip
    text = text_config(tokenizer)
    del text["model_type"]
    del text["head_dim"]
    config = AutoConfig.for_model("chameleon", vq_config=vq, vocabulary_map=tokenizer.get_vocab(), **text)
    images = ChameleonImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    template = chat_template("<image>", bos=True)
    write(folder, config, Parts("ChameleonProcessor", images, tokenizer, template, {"image_seq_length": 16}))


def make_emu3(folder: Path) -> None:
    """Write a model whose rows of codes end with a token of their own."""
    names = {
        "image_token": "<image>", "boi_token": "<|image start|>", "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>", "eof_token": "<|extra_201|>",
    }  # fmt: skip
    codes = tuple(f"<|visual token {number:06}|>" for number in range(CODES))
    tokenizer = make_tokenizer((*names.values(), "<|extra_200|>", *codes), names=names)
    vq = {
        "codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1], "num_res_blocks": 1, "attn_resolutions": [3], "hidden_size": 32,
        "temporal_downsample_factor": 2,
    }  # fmt: skip
    text = text_config(tokenizer, "emu3_text_model")
    del text["head_dim"]
    config = AutoConfig.for_model("emu3", vq_config=vq, text_config=text, vocabulary_map=tokenizer.get_vocab())
    images = Emu3ImageProcessor(min_pixels=32 * 32, max_pixels=64 * 64, spatial_factor=8)
    write(folder, config, Parts("Emu3Processor", images, tokenizer, chat_template("<image>")))


def make_janus(folder: Path) -> None:
    """Write a model with a tower for images that it reads and a codebook for those that it writes."""
    names = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer(tuple(names.values()), bos=True, names=names)
    vision = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
        "mlp_ratio": 2, "projection_dim": 64, "num_image_tokens": 16,
    }  # fmt: skip
    vq = {
        "embed_dim": 8, "num_embeddings": CODES, "latent_channels": 32, "base_channels": 32,
        "channel_multiplier": [1, 1], "num_res_blocks": 1, "projection_dim": 64, "image_token_embed_dim": 64,
    }  # fmt: skip
    config = AutoConfig.for_model(
        "janus", text_config=text_config(tokenizer), vision_config=vision, vq_config=vq, image_token_id=4,
        tie_word_embeddings=False,
    )  # fmt: skip
    images = JanusImageProcessorPil(size={"height": 32, "width": 32})
    template = chat_template("<image_placeholder>", bos=True)
    settings: dict[str, Any] = {"num_image_tokens": 16}
    write(folder, config, Parts("JanusProcessor", images, tokenizer, template, settings))


MAKERS = {"chameleon": make_chameleon, "emu3": make_emu3, "janus": make_janus}
