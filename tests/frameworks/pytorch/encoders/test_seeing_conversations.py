"""Vectors of texts, images and conversations equal those of transformers' own processor and model."""

import gc
import io
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Conversation, Message, MessageImage
from frameworks.pytorch.encoders.seeing.conversations import ConversationPrompts
from frameworks.tasks.types import TaskItem
from frameworks.text.pooling import normalize_rows
from frameworks.types import Array
from tests.frameworks.models.loading import load_torch_model
from tests.frameworks.pytorch.encoders.test_seeing_pages import load, rows_of
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, conversation
from tests.support.models.text_files import change_json
from tests.support.models.vision.catalogue import MAKERS
from tests.support.models.vision.retrieval import INSTRUCTION, add_modules
from tests.support.models.vision.saving import load_processor, without_torchvision

FAMILIES = ("qwen3_vl", "qwen2_5_vl", "smolvlm", "gemma3")
TOLERANCE = 2e-5
TEXT = "the cat sat on the mat ."


def save(folder: Path, family: str = "qwen3_vl", **options: Any) -> Path:
    MAKERS[family](folder)
    add_modules(folder, **options)
    return folder


class Reference:
    """transformers' own model without its head, as sentence-transformers runs it."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self._processor = load_processor(folder)
        self._template = (folder / "chat_template.jinja").read_text(encoding="utf-8")

    def row(self, *parts: dict[str, Any], instruction: str = INSTRUCTION, **options: Any) -> Array:
        """Return the vector of a message of the user, whose length is 1. `options`: of the template."""
        talk = [{"role": "user", "content": list(parts)}]
        if instruction:
            talk.insert(0, {"role": "system", "content": [{"type": "text", "text": instruction}]})
        inputs = self._processor.apply_chat_template(
            talk, chat_template=self._template, tokenize=True, return_dict=True, return_tensors="pt",
            **{"add_generation_prompt": True, **options},
        )  # fmt: skip
        with torch.no_grad():
            states = self._model(**inputs).last_hidden_state
        row: Array = torch.nn.functional.normalize(states[0, -1], dim=0).numpy()
        return row


def part_of(file: bytes) -> dict[str, Any]:
    return {"type": "image", "image": Image.open(io.BytesIO(file)).convert("RGB")}


def check(row: Array, expected: Array) -> None:
    np.testing.assert_allclose(normalize_rows(row[None])[0], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_reference_for_contents(tmp_path: Path, family: str) -> None:
    folder = save(tmp_path, family)
    model, reference = load(folder), Reference(folder)
    prompts = model.content_prompts
    assert isinstance(prompts, ConversationPrompts)
    text = {"type": "text", "text": TEXT}
    [of_text] = rows_of(model, [prompts.of_text(TEXT, "text", True, None)])
    check(of_text, reference.row(text))
    for file in IMAGES[:2]:
        [of_image] = rows_of(model, [prompts.of_image(MessageImage(file, 0, "image"))])
        check(of_image, reference.row(part_of(file)))
    talk = conversation(IMAGES[:2])
    parts = []
    for number, file in enumerate(IMAGES[:2]):
        parts += [part_of(file), {"type": "text", "text": f"one {number}"}]
    [of_both] = rows_of(model, [prompts.of_conversation(talk, None)])
    check(of_both, reference.row(*parts[:-1], {"type": "text", "text": "one 1 tell me"}))
    assert model.spec.unbatched_because is None


@pytest.mark.extended
def test_rows_equal_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = save(tmp_path)
    with without_torchvision():
        theirs: Any = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    model = load(folder)
    prompts = model.content_prompts
    picture = part_of(IMAGES[0])["image"]
    items = [prompts.of_text(TEXT, "text", True, None), prompts.of_image(MessageImage(IMAGES[0], 0, ""))]
    for item, given in zip(items, (TEXT, picture), strict=True):
        check(rows_of(model, [item])[0], theirs.encode([given], show_progress_bar=False)[0])


def test_rows_do_not_depend_on_neighbours(tmp_path: Path) -> None:
    model = load(save(tmp_path))
    prompts = model.content_prompts
    items = [prompts.of_image(MessageImage(IMAGES[0], 0, "")), prompts.of_image(MessageImage(_turned(), 0, ""))]
    assert items[0].shape == items[1].shape
    for item, row in zip(items, rows_of(model, items), strict=True):
        np.testing.assert_allclose(row, rows_of(model, [item])[0], rtol=0, atol=TOLERANCE)


def test_request_prompt_replaces_that_of_files(tmp_path: Path) -> None:
    folder = save(tmp_path)
    model, reference = load(folder), Reference(folder)
    prompts = model.content_prompts
    text = {"type": "text", "text": TEXT}
    [row] = rows_of(model, [prompts.of_text(TEXT, "text", True, "Find pictures.")])
    check(row, reference.row(text, instruction="Find pictures."))
    talk = Conversation((Message("system", "Find pictures."), Message("user", TEXT)))
    [row] = rows_of(model, [prompts.of_conversation(talk, "messages")])
    check(row, reference.row(text, instruction="Find pictures.", add_generation_prompt=False))


def test_empty_last_message_begins_response(tmp_path: Path) -> None:
    model = load(save(tmp_path))
    user = Message("user", "", images=(MessageImage(IMAGES[0], 0, ""),))
    begun = Conversation((Message("system", INSTRUCTION), user, Message("assistant", "")))
    prompts = model.content_prompts
    ids = [
        prompts.of_conversation(begun, "last_message").value["input_ids"].tolist(),
        prompts.of_image(MessageImage(IMAGES[0], 0, "")).value["input_ids"].tolist(),
    ]
    assert ids[0] == ids[1]


def test_long_text_cut_before_template_end(tmp_path: Path) -> None:
    model = load(save(tmp_path))
    prompts = model.content_prompts
    ids, others = (
        prompts.of_text(each, "text", True, None).value["input_ids"][0].tolist() for each in (TEXT * 1000, TEXT)
    )
    assert len(ids) == model.spec.max_tokens == 2048
    assert ids[-5:] == others[-5:]
    with pytest.raises(InvalidInput, match=r"text\[1\]: expected at most 2048 tokens"):
        prompts.of_text(TEXT * 1000, "text[1]", False, None)


def test_settings_of_images_reach_processor(tmp_path: Path) -> None:
    folder = save(tmp_path, image={"size": {"shortest_edge": 256, "longest_edge": 1024}})
    few = load(folder).content_prompts.of_image(MessageImage(IMAGES[2], 0, ""))
    change_json(folder / "sentence_bert_config.json", processing_kwargs=None)
    many = load(folder).content_prompts.of_image(MessageImage(IMAGES[2], 0, ""))
    assert [len(each.value["pixel_values"]) for each in (few, many)] == [16, 64]


def test_folder_without_messages_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    change_json(folder / "sentence_bert_config.json", modality_config=None, module_output_name=None)
    with pytest.raises(InvalidModel, match="got Qwen3VLForConditionalGeneration"):
        load_torch_model(folder, dtype="f32")


def test_closed_model_releases_weights(tmp_path: Path) -> None:
    model = load(save(tmp_path))
    prompts, weights = model.content_prompts, weakref.ref(model._model)
    model.close()
    gc.collect()
    assert weights() is None
    assert prompts.of_text(TEXT, "text", True, None).num_tokens > 0


def test_class_without_head_is_served(tmp_path: Path) -> None:
    folder = save(tmp_path)
    expected = Reference(folder).row({"type": "text", "text": TEXT})
    model: Any = AutoModel.from_pretrained(folder)
    model.save_pretrained(folder)
    own = load(folder)
    assert own.spec.messages is not None
    items: list[TaskItem] = [own.content_prompts.of_text(TEXT, "text", True, None)]
    check(rows_of(own, items)[0], expected)


def _turned() -> bytes:
    """Return a file of another image with as many patches, in another grid."""
    file = io.BytesIO()
    Image.open(io.BytesIO(IMAGES[0])).transpose(Image.Transpose.ROTATE_90).save(file, "PNG")
    return file.getvalue()
