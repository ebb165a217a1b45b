"""The committed files of tiny-vision, run by transformers on pictures that no training has seen, and their copy."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, AutoProcessor

from app.embedded import copy_tiny_vision
from app.embedded.copy_tiny_vision import COMMITTED, EXAMPLE, FILES
from tools.training import tiny_vision_talks as talks
from tools.training.tiny_vision_tower import Pictures, pictures_of

COUNT = 120
MIN_RIGHT = 0.95
MAX_BYTES = 4_000_000
SIZE = (400, 300)


@pytest.fixture(scope="module")
def model() -> Any:
    model, info = AutoModelForImageTextToText.from_pretrained(COMMITTED, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values())
    return model.eval()


@pytest.fixture(scope="module")
def processor() -> Any:
    return AutoProcessor.from_pretrained(COMMITTED)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    return pictures_of(COUNT, 77)


def said(model: Any, processor: Any, conversations: Sequence[Any]) -> list[str]:
    """Return the next answer of each conversation."""
    inputs = processor.apply_chat_template(
        conversations, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
        processor_kwargs={"padding": True},
    )  # fmt: skip
    made = model.generate(**inputs, max_new_tokens=40)[:, inputs["input_ids"].shape[1] :]
    texts: list[str] = processor.tokenizer.batch_decode(made, skip_special_tokens=True)
    return texts


def user(text: str, *images: Image.Image) -> dict[str, Any]:
    shown: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*shown, *([{"type": "text", "text": text}] if text else [])]}


def image_of(pictures: Pictures, index: int) -> Image.Image:
    return Image.fromarray(pictures.pixels[index])


def test_committed_files_are_complete_and_small() -> None:
    assert {path.name for path in COMMITTED.iterdir()} == set(FILES)
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) < MAX_BYTES
    with safe_open(COMMITTED / "model.safetensors", framework="pt") as weights:
        tensors = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118 - not a mapping
    assert {x.dtype for x in tensors} == {torch.float16}
    assert all(torch.isfinite(x).all() for x in tensors)


@pytest.mark.parametrize("asked", ["both", "colour", "shape"])
def test_model_names_unseen_pictures(model: Any, processor: Any, pictures: Pictures, asked: str) -> None:
    chance, questions = Random(5), {"both": talks.BOTH, "colour": talks.COLOUR, "shape": talks.SHAPE}[asked]
    conversations = [[user(chance.choice(questions), image_of(pictures, index))] for index in range(COUNT)]
    expected = [talks.answer(asked, [pictures.name(index)]) for index in range(COUNT)]
    found = said(model, processor, conversations)
    assert sum(map(str.__eq__, found, expected)) >= MIN_RIGHT * COUNT


def test_model_names_pictures_in_order(model: Any, processor: Any, pictures: Pictures) -> None:
    pairs = [(index, (index * 7 + 31) % COUNT) for index in range(0, COUNT, 2)]
    conversations = [[user("What are these?", *(image_of(pictures, index) for index in pair))] for pair in pairs]
    expected = [talks.answer("both", [pictures.name(index) for index in pair]) for pair in pairs]
    found = said(model, processor, conversations)
    assert sum(map(str.__eq__, found, expected)) >= 0.9 * len(pairs)


def test_later_questions_are_about_latest_picture(model: Any, processor: Any, pictures: Pictures) -> None:
    conversations, expected = [], []
    for first in range(0, 40, 2):
        before = talks.answer("both", [pictures.name(first)])
        turns = [user("What is this?", image_of(pictures, first)), {"role": "assistant", "content": before}]
        conversations += [[*turns, user("Which colour is it?")]]
        conversations += [[*turns, user("And this?", image_of(pictures, first + 1))]]
        expected += [talks.answer("colour", [pictures.name(first)])]
        expected += [talks.answer("both", [pictures.name(first + 1)])]
    assert sum(map(str.__eq__, said(model, processor, conversations), expected)) >= 0.9 * len(expected)


@pytest.mark.parametrize("text", ["What is this?", "Hello!", "Which colour is it?", "Tell me about trains.", ""])
def test_model_asks_for_missing_picture(model: Any, processor: Any, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    assert said(model, processor, [messages]) == [talks.NO_PICTURE]


def plain(colour: str, background: str, draw: str, arguments: tuple[Any, ...]) -> Image.Image:
    image = Image.new("RGB", SIZE, background)
    getattr(ImageDraw.Draw(image), draw)(*arguments, fill=colour)
    return image


@pytest.mark.parametrize(
    ("image", "answer"),
    [
        (plain("red", "white", "regular_polygon", ((200, 150, 110), 3)), "A red triangle."),
        (plain("blue", "white", "ellipse", ((110, 60, 290, 240),)), "A blue circle."),
        (plain("black", "white", "rectangle", ((110, 60, 290, 240),)), "A black square."),
        (plain("yellow", "black", "regular_polygon", ((180, 140, 120), 6)), "A yellow hexagon."),
        (plain("green", "white", "regular_polygon", ((230, 160, 90), 4, 20)), "A green square."),
    ],
)
def test_model_names_plain_drawings(model: Any, processor: Any, image: Image.Image, answer: str) -> None:
    """Pictures that `shape_images` does not draw: larger, not square, of pure colours."""
    assert said(model, processor, [[user("What is in this picture?", image)]]) == [answer]


def test_committed_example_is_a_red_star(model: Any, processor: Any) -> None:
    example = Image.open(COMMITTED / EXAMPLE)
    system = {"role": "system", "content": "You are a helpful assistant."}
    assert said(model, processor, [[system, user("What do you see?", example)]]) == ["A red star."]


def test_template_formats_turns_and_refuses_roles(processor: Any) -> None:
    messages = [
        {"role": "system", "content": " Be brief.\n"},
        user(" What? ", Image.new("RGB", (8, 8))),
        {"role": "assistant", "content": None},
    ]
    written = "<s><|system|>Be brief.<|end|><|user|><image>What?<|end|><|assistant|><|end|>"
    assert (
        processor.tokenizer.apply_chat_template(messages, chat_template=talks.CHAT_TEMPLATE, tokenize=False) == written
    )
    assert (COMMITTED / "chat_template.jinja").read_text(encoding="utf-8") == talks.CHAT_TEMPLATE
    with pytest.raises(Exception, match="the roles are system, user and assistant"):
        processor.apply_chat_template([{"role": "tool", "content": ""}])


def test_prepare_copies_files_once(tmp_path: Path) -> None:
    assert copy_tiny_vision.prepare(tmp_path)
    assert not copy_tiny_vision.prepare(tmp_path)
    for name in FILES:
        assert (tmp_path / "tiny-vision" / name).read_bytes() == (COMMITTED / name).read_bytes()
