"""The pictures and conversations of tiny-vision, and a tiny training."""

import dataclasses
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoProcessor

from app.embedded.copy_tiny_vision import FILES
from tools.training import shape_images
from tools.training import tiny_vision_talks as talks
from tools.training.tiny_vision_language import encoded
from tools.training.tiny_vision_tower import pictures_of
from tools.training.train_tiny_vision import Recipe, accuracy_of, make, new_model, new_processor, new_tower

SMALL = Recipe(
    hidden_size=16, feed_forward_size=32, layers=1, heads=2, key_value_heads=1, pictures=64, held_out=12,
    tower_steps=2, steps=2, min_accuracy=0.0,
)  # fmt: skip
NAMES = [("red", "star"), ("orange", "ring"), ("blue", "arrow")]


@pytest.mark.parametrize("colour", shape_images.COLOURS)
def test_shape_has_the_named_colour(colour: str) -> None:
    chance, found = Random(1), []
    for _ in range(10):
        image, mask = shape_images.draw_named("circle", colour, chance, 128)
        inner = np.asarray(mask.resize(image.size)) == 255
        found.append(shape_images.colour_of(tuple(np.asarray(image)[inner].mean(0))))
    assert found.count(colour) >= 9  # noise makes the colours of photos greyer


def test_colours_are_far_from_each_other() -> None:
    centres = list(shape_images.COLOURS.values())
    nearest = min(math.dist(a, b) for a in centres for b in centres if a != b)
    assert nearest > 2 * math.sqrt(3) * shape_images.MAX_COLOUR_DIFFERENCE


def test_pictures_are_deterministic_and_balanced() -> None:
    pictures, again, others = pictures_of(120, 3), pictures_of(120, 3), pictures_of(120, 4)
    assert (pictures.pixels == again.pixels).all()
    assert (pictures.pixels != others.pixels).any()
    assert len({pictures.name(index) for index in range(120)}) == 120


@pytest.mark.parametrize(
    ("asked", "count", "answer"),
    [
        ("both", 0, talks.NO_PICTURE),
        ("both", 1, "A red star."),
        ("both", 2, "A red star and an orange ring."),
        ("both", 3, "A red star, an orange ring and a blue arrow."),
        ("colour", 1, "It is red."),
        ("colour", 2, "They are red and orange."),
        ("shape", 3, "They are a star, a ring and an arrow."),
    ],
)
def test_answers_name_pictures_in_order(asked: str, count: int, answer: str) -> None:
    assert talks.answer(asked, NAMES[:count]) == answer


def test_talks_show_each_picture_once() -> None:
    chance = Random(2)
    for _ in range(300):
        talk = talks.talk_about(NAMES, chance)
        parts = [part for message in talk.messages if message["role"] == "user" for part in message["content"]]
        assert sum(part["type"] == "image" for part in parts) == len(talk.pictures)
        assert talk.messages[-1]["role"] == "assistant"


def test_labels_are_the_answers() -> None:
    tokenizer = new_processor(SMALL).tokenizer
    said: dict[str, Any] = {"role": "assistant", "content": "A red star."}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image"}]},
        said,
        {"role": "user", "content": "Hi"},
        said,
    ]
    ids, labels = encoded([talks.Talk(messages, [0]), talks.Talk(messages[:2], [0])], tokenizer)
    assert ids.shape == labels.shape
    for row, times in zip(labels, (2, 1), strict=True):
        assert tokenizer.decode(row[row != -100]) == times * f"A red star.{talks.END_OF_TURN}"
    assert (ids == tokenizer.convert_tokens_to_ids(talks.IMAGE)).sum() == 32


@pytest.mark.extended
def test_make_writes_trained_model_that_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    for name in ("one", "two"):
        make(tmp_path / name, SMALL)
    assert {path.name for path in (tmp_path / "one").iterdir()} == set(FILES)
    for file in FILES:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    model, info = AutoModelForImageTextToText.from_pretrained(tmp_path / "one", output_loading_info=True)
    assert not any(info.values())
    assert model.dtype == torch.float16
    assert AutoProcessor.from_pretrained(tmp_path / "one").image_token == talks.IMAGE


@pytest.mark.extended
def test_poor_training_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"expected an accuracy of 0\.97 .* nothing written"):
        make(tmp_path / "new", dataclasses.replace(SMALL, min_accuracy=0.97))
    assert not (tmp_path / "new").exists()


def test_accuracy_of_random_weights_is_low() -> None:
    processor = new_processor(SMALL)
    assert (
        accuracy_of(new_model(SMALL, new_tower(), processor.tokenizer).eval(), pictures_of(12, 1), processor.tokenizer)
        < 0.5
    )
