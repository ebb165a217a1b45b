"""Train ``tiny-vision``, a model that sees, and write its folder: ``python -m tools.training.train_tiny_vision``.

Data: 24,000 pictures that `shape_images` draws, ten shapes in twelve colours, mirrored and transposed at random; others
are held out. Conversations about them are made by ``tiny_vision_talks.py``. Model: LLaVA with a Swin tower, which makes
16 vectors of a picture of 64 x 64 pixels, and a Llama of three layers: 927,000 weights, written in float16.

Stages: the tower alone (``tiny_vision_tower.py``), then the language model on conversations, which reads the vectors of
the finished tower (``tiny_vision_language.py``). Shape and colour of 99 % of 600 held-out pictures are right (measured
on 2026-11-30); training takes 16 minutes on one core.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from app.embedded.copy_tiny_vision import COMMITTED, EXAMPLE
from tools.training import tiny_vision_talks as talks
from tools.training.shape_images import COLOURS, SHAPES, SIDE, draw_named
from tools.training.tiny_vision_language import IMAGE_TOKENS_PER_SIDE, Shown, are_right, train_language
from tools.training.tiny_vision_talks import Talk
from tools.training.tiny_vision_tower import MEAN, STD, Pictures, pictures_of, train_tower

SEED, HELD_OUT_SEED = 0, 1_000_003
CONTEXT = 1024
EXAMPLE_NAMED, EXAMPLE_SIDE, EXAMPLE_SEED = ("red", "star"), 240, 7


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes of the model and of its training."""

    vocabulary: int = 512
    hidden_size: int = 128
    feed_forward_size: int = 256
    layers: int = 3
    heads: int = 4
    key_value_heads: int = 2
    pictures: int = 24_000
    held_out: int = 600
    tower_steps: int = 5600
    steps: int = 600
    min_accuracy: float = 0.95
    """Minimum share of right answers about held-out pictures, shape and colour: a worse model is not written."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the folder and print the size and the accuracy."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.training.train_tiny_vision", description="Train the tiny-vision model."
    )
    parser.add_argument("--out", type=Path, default=COMMITTED, help="the folder to write")
    out: Path = parser.parse_args(arguments).out
    make(out, Recipe())


def make(out: Path, recipe: Recipe) -> None:
    """Train by ``recipe`` and write the model's files into the folder ``out``.

    Raises: SystemExit, before any file is written, if the accuracy on the held-out pictures is below the recipe's.
    """
    started = time.process_time()
    pictures, held_out = pictures_of(recipe.pictures, SEED), pictures_of(recipe.held_out, HELD_OUT_SEED)
    processor = new_processor(recipe)
    tower = new_tower()
    train_tower(tower, pictures, held_out, recipe.tower_steps, SEED)
    model = new_model(recipe, tower, processor.tokenizer)
    train_language(model, Shown(pictures, processor.tokenizer), recipe.steps, SEED)
    model = model.half().float().eval()
    accuracy = accuracy_of(model, held_out, processor.tokenizer)
    if not accuracy >= recipe.min_accuracy:
        raise SystemExit(
            f"expected an accuracy of {recipe.min_accuracy} on the held-out pictures, got {accuracy:.4f}; "
            "nothing written"
        )
    write(model, processor, out)
    size = sum(path.stat().st_size for path in out.iterdir())
    minutes = (time.process_time() - started) / 60
    print(f"{out}: {size} bytes, accuracy {accuracy:.4f} on {recipe.held_out} held-out pictures, {minutes:.1f} minutes")


def new_processor(recipe: Recipe) -> Any:
    """Return the processor of images and text, whose tokenizer learns byte-level BPE from conversations."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlavaImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=list(talks.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(talks.sentences([(colour, shape) for colour in COLOURS for shape in SHAPES]), trainer)
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=talks.BEGIN,
        eos_token=talks.END_OF_TEXT,
        pad_token=talks.PAD,
        additional_special_tokens=[x for x in talks.SPECIAL_TOKENS if x.startswith("<|")],
        extra_special_tokens={"image_token": talks.IMAGE},
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    square = {"height": SIDE, "width": SIDE}
    images = LlavaImageProcessorPil(
        size=square, crop_size=square, do_center_crop=False, resample=2, image_mean=[MEAN] * 3, image_std=[STD] * 3
    )
    return LlavaProcessor(
        images,
        whole,
        patch_size=SIDE // IMAGE_TOKENS_PER_SIDE,
        vision_feature_select_strategy="full",
        chat_template=talks.CHAT_TEMPLATE,
    )


def new_tower() -> Any:
    """Return a transformers Swin with seeded random weights, which makes 16 vectors of a picture."""
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(SEED)
    config = SwinConfig(
        image_size=SIDE,
        patch_size=4,
        embed_dim=32,
        depths=[1, 2, 2],
        num_heads=[2, 4, 4],
        window_size=4,
        mlp_ratio=2.0,
        drop_path_rate=0.0,
    )
    return SwinModel(config)


def new_model(recipe: Recipe, tower: Any, tokenizer: Any) -> Any:
    """Return a transformers LLaVA with the tower, and seeded random weights of the language model.

    Its answers are greedy, and end with their turn.
    """
    from transformers import GenerationConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(SEED)
    names = [talks.PAD, talks.BEGIN, talks.END_OF_TEXT, talks.END_OF_TURN, talks.IMAGE]
    pad, begin, end_of_text, end_of_turn, image = tokenizer.convert_tokens_to_ids(names)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.feed_forward_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_value_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=begin,
        eos_token_id=end_of_text,
    )
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=text,
        image_token_index=image,
        image_seq_length=IMAGE_TOKENS_PER_SIDE**2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(tower.state_dict())
    model.generation_config = GenerationConfig(
        do_sample=True, top_k=1, pad_token_id=pad, bos_token_id=begin, eos_token_id=[end_of_text, end_of_turn]
    )
    return model


def accuracy_of(model: Any, pictures: Pictures, tokenizer: Any) -> float:
    """Return the share of right answers to the question for shape and colour, one for each picture."""
    questions, right = Random(HELD_OUT_SEED), 0
    for first in range(0, len(pictures), 100):
        batch = []
        for index in range(first, min(first + 100, len(pictures))):
            content = [{"type": "image"}, {"type": "text", "text": questions.choice(talks.BOTH)}]
            said = talks.answer("both", [pictures.name(index)])
            batch.append(Talk([_message("user", content), _message("assistant", said)], [index]))
        right += sum(are_right(model, batch, Shown(pictures, tokenizer)))
    return right / len(pictures)


def write(model: Any, processor: Any, folder: Path) -> None:
    """Write the weights in float16, the files beside them, and an example."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    processor.save_pretrained(folder)
    colour, shape = EXAMPLE_NAMED
    example, _ = draw_named(shape, colour, Random(EXAMPLE_SEED), EXAMPLE_SIDE)
    example.save(folder / EXAMPLE, quality=85)


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


if __name__ == "__main__":
    main()
