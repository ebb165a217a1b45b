"""Each tiny model of the second part reads text and images in transformers itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from transformers.models.auto import modeling_auto
from transformers.utils import is_torchvision_available

from tests.support.models.vision.catalogue_b import (
    ASKS_KINDS,
    MAKERS,
    MAX_IMAGES,
    NEEDS_IMAGE,
    NOT_BUILT,
    PLAIN_CALL,
    TORCHVISION_MAKERS,
)
from tests.support.models.vision.videos_b import load_processor

SIZES = ((48, 32), (30, 50), (64, 64))
TEXT = "<|user|>\n  Größe? 12345 don't"
MOST_BYTES = 8 << 20


def test_types_are_those_of_transformers() -> None:
    known = set(modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
    assert set(MAKERS) | set(NOT_BUILT) <= known
    assert not set(MAKERS) & set(NOT_BUILT)
    assert set(MAX_IMAGES) | NEEDS_IMAGE | PLAIN_CALL | ASKS_KINDS <= set(MAKERS) | set(TORCHVISION_MAKERS)


def test_make_twice_gives_equal_folders(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        MAKERS["glm4v"](tmp_path / name)
        written.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert written[0] == written[1]


# Lists of arrays of torch.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("model_type", sorted(MAKERS))
def test_model_reads_images(model_type: str, tmp_path: Path) -> None:
    MAKERS[model_type](tmp_path)
    _check_images(model_type, tmp_path)


@pytest.mark.parametrize("model_type", sorted(TORCHVISION_MAKERS))
def test_model_without_processor_reads_text(model_type: str, tmp_path: Path) -> None:
    TORCHVISION_MAKERS[model_type](tmp_path)
    if is_torchvision_available():
        return _check_images(model_type, tmp_path)
    model = _load(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = tokenizer.apply_chat_template(_messages([]), tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert len(set(written[0, inputs["input_ids"].shape[1] :].tolist())) > 1
    return None


def _check_images(model_type: str, folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.rglob("*")) < MOST_BYTES
    model = _load(folder)
    processor = load_processor(folder)
    for count in sorted({0 if model_type not in NEEDS_IMAGE else 1, 1, MAX_IMAGES.get(model_type, len(SIZES))}):
        one, other = (_inputs(model_type, processor, _pictures(count, seed)).to(model.dtype) for seed in (1, 2))
        with torch.inference_mode():
            written = model.generate(**one, max_new_tokens=8, do_sample=False)
            logits, others = (model(**inputs).logits[0, -1] for inputs in (one, other))
        assert written.shape[1] > one["input_ids"].shape[1]
        assert torch.isfinite(logits).all()
        assert torch.equal(logits, others) is (count == 0)


def _load(folder: Path) -> Any:
    model, loading = transformers.AutoModelForMultimodalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.is_fast
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    assert tokenizer(TEXT)["input_ids"] == ids
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert "be brief" in tokenizer.apply_chat_template(chat, tokenize=False)
    assert len(tokenizer) == tokenizer.backend_tokenizer.get_vocab_size() < 600
    return model.eval()


def _pictures(count: int, seed: int) -> list[Image.Image]:
    random = np.random.default_rng(seed)
    return [
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in SIZES[:count]
    ]


def _messages(pictures: list[Image.Image]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "which colours are here?"}]}]


def _inputs(model_type: str, processor: Any, pictures: list[Image.Image]) -> Any:
    messages = _messages(pictures)
    if model_type in PLAIN_CALL:
        text = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return processor(text=[text], images=pictures or None, return_tensors="pt")
    asked = {"return_mm_token_type_ids": True} if model_type in ASKS_KINDS else {}
    return processor.apply_chat_template(
        messages,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        processor_kwargs=asked,
    )
