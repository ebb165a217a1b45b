"""Make tiny models of the Idefics family, which cuts images into tiles."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, SmolVLMImageProcessorPil

from tests.support.models.vision.llava import text_config
from tests.support.models.vision.saving import Parts, save_model, save_processor
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))
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


def make_smolvlm(folder: Path) -> None:
    """Write a model with tiles of 32 pixels, after each of which stand its row and column."""
    tokenizer = make_tokenizer(TOKENS, names=NAMES)
    config = AutoConfig.for_model(
        "smolvlm", text_config=text_config(tokenizer), vision_config=TOWER, image_token_id=4, scale_factor=2,
        pad_token_id=0,
    )  # fmt: skip
    save_model(folder, config, tokenizer)
    images = SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    template = chat_template("<image>", bos=True)
    settings = {"image_seq_len": 4}
    videos = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 32}, "num_frames": 4, "fps": 1}
    save_processor(
        folder,
        Parts("SmolVLMProcessor", images, tokenizer, template, settings, "SmolVLMVideoProcessor", videos),
    )


MAKERS = {"smolvlm": make_smolvlm}
