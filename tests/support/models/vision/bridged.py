"""Make tiny models that read an image by learned queries, or by features before the text: one image in each text."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, BlipImageProcessorPil, CLIPImageProcessorPil, Kosmos2_5ImageProcessorPil

from tests.support.models.vision.saving import Drawing, Parts, write
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

IMAGE = "<image>"
TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
QUERIES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "cross_attention_frequency": 2, "max_position_embeddings": 512,
}  # fmt: skip
SIZE = {"height": 32, "width": 32}


def _opt(tokenizer: Any) -> dict[str, Any]:
    """Return the sizes of a decoder with learned positions."""
    return {
        "model_type": "opt", "vocab_size": len(tokenizer), "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "word_embed_proj_dim": 64, "max_position_embeddings": 512, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
    }  # fmt: skip


def make_blip2(folder: Path) -> None:
    """Write a model whose four queries read the tower; their tokens stand before the text."""
    tokenizer = make_tokenizer((IMAGE,), bos=True)
    config = AutoConfig.for_model(
        "blip-2", vision_config=TOWER, qformer_config=QUERIES | {"vocab_size": len(tokenizer)},
        text_config=_opt(tokenizer), num_query_tokens=4, image_token_index=4, image_text_hidden_size=32,
        tie_word_embeddings=False,
    )  # fmt: skip
    images = BlipImageProcessorPil(size=SIZE)
    write(folder, config, Parts("Blip2Processor", images, tokenizer, chat_template(""), {"num_query_tokens": 4}))


def make_instructblip(folder: Path) -> None:
    """Write a model whose queries read the text too, by a tokenizer of their own."""
    tokenizer = make_tokenizer((IMAGE,), bos=True)
    config = AutoConfig.for_model(
        "instructblip", vision_config=TOWER, qformer_config=QUERIES | {"vocab_size": len(tokenizer)},
        text_config=_opt(tokenizer), num_query_tokens=4, image_token_index=4, tie_word_embeddings=False,
    )  # fmt: skip
    parts = Parts(
        "InstructBlipProcessor", BlipImageProcessorPil(size=SIZE), tokenizer, chat_template(""),
        {"num_query_tokens": 4}, members={"qformer_tokenizer": make_tokenizer((IMAGE,), bos=True)},
    )  # fmt: skip
    write(folder, config, parts)


def make_git(folder: Path) -> None:
    """Write a model that reads the features of an image before the tokens, without tokens for them."""
    tokenizer = make_tokenizer(bos=True)
    config = AutoConfig.for_model(
        "git", vision_config=TOWER, vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=96, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SIZE)
    write(folder, config, Parts("GitProcessor", images, tokenizer, chat_template("")))


NORMED = Drawing(
    0.1, spreads=(("image_to_text_projection.dense", 3.0), ("latent_query", 0.3), ("x_attn.q_proj.weight", 2.0))
)
"""The projector gets features of length 1, and each of its queries picks few of many patches."""


def _kosmos_text(tokenizer: Any) -> dict[str, Any]:
    """Return the sizes of a decoder with positions of sines."""
    return {
        "vocab_size": len(tokenizer), "embed_dim": 64, "layers": 2, "ffn_dim": 96, "attention_heads": 4,
        "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "tie_word_embeddings": False,
    }  # fmt: skip


KOSMOS2_TAGS = (
    "</doc>", "<image>", "</image>", "</chunk>", "</line>", "<phrase>", "</phrase>", "<object>", "</object>",
    "</delimiter_of_multi_objects/>", "<grounding>",
)  # fmt: skip


def make_kosmos2(folder: Path) -> None:
    """Write a model with 64 queries for an image, whose tokens are the first 64 after the unknown one."""
    patches = tuple(f"<patch_index_{number:04}>" for number in range(16))
    tokenizer = make_tokenizer((*(f"<image_{number}>" for number in range(64)), *KOSMOS2_TAGS, *patches))
    config = AutoConfig.for_model(
        "kosmos-2", text_config=_kosmos_text(tokenizer), vision_config=TOWER, latent_query_num=64,
        tie_word_embeddings=False,
    )  # fmt: skip
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SIZE)
    settings = {"num_patch_index_tokens": 16}
    write(folder, config, Parts("Kosmos2Processor", images, tokenizer, chat_template(""), settings), NORMED)


def make_kosmos2_5(folder: Path) -> None:
    """Write a model with 16 queries for an image, which is enlarged to thousands of patches."""
    names = {"boi_token": "<image>", "eoi_token": "</image>", "image_token": "<query>"}
    tokenizer = make_tokenizer(tuple(names.values()), names=names)
    vision = {
        "hidden_size": 32, "patch_embed_hidden_size": 192, "intermediate_size": 48, "head_dim": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_num_patches": 4096,
    }  # fmt: skip
    config = AutoConfig.for_model(
        "kosmos-2.5", text_config=_kosmos_text(tokenizer), vision_config=vision, latent_query_num=16,
        tie_word_embeddings=False,
    )  # fmt: skip
    images = Kosmos2_5ImageProcessorPil(patch_size={"height": 8, "width": 8})
    write(
        folder,
        config,
        Parts("Kosmos2_5Processor", images, tokenizer, chat_template(""), {"num_image_tokens": 16}),
        NORMED,
    )


MAKERS = {
    "blip-2": make_blip2,
    "instructblip": make_instructblip,
    "git": make_git,
    "kosmos-2": make_kosmos2,
    "kosmos-2.5": make_kosmos2_5,
}
