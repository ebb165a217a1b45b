"""Each tiny model of the first part of the census reads images, and its next token depends on them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer

from tests.support.models.vision.catalogue_a import MAKERS, MAX_IMAGES, NEEDS_IMAGE, NOT_BUILT
from tests.support.models.vision.saving import load_processor

SIZES = ((48, 32), (30, 50), (64, 64))
HANDFUL = ("smolvlm", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava")
MOST_BYTES = 8 << 20


def test_tables_agree() -> None:
    assert not set(MAKERS) & set(NOT_BUILT)
    assert set(MAX_IMAGES) | NEEDS_IMAGE <= set(MAKERS)


@pytest.mark.parametrize("model_type", HANDFUL)
def test_model_reads_images(model_type: str, tmp_path: Path) -> None:
    _check(model_type, tmp_path)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # the processor of PaliGemma
@pytest.mark.parametrize("model_type", [name for name in MAKERS if name not in HANDFUL])
def test_model_of_family_reads_images(model_type: str, tmp_path: Path) -> None:
    _check(model_type, tmp_path)


@pytest.mark.parametrize("model_type", HANDFUL[:1])
def test_make_twice_gives_equal_weights(model_type: str, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        MAKERS[model_type](tmp_path / name)
        contents.append((tmp_path / name / "model.safetensors").read_bytes())
    assert contents[0] == contents[1]


def _check(model_type: str, folder: Path) -> None:
    MAKERS[model_type](folder)
    assert sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) < MOST_BYTES
    model, loading = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert model.config.model_type == model_type
    assert not any(loading.values()), loading
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.is_fast
    assert len(tokenizer) == tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=True)
    processor = load_processor(folder)
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    # Some processors keep no template.
    assert processor.chat_template in (template, None)
    for count in (0, 1, 3):
        if not (model_type in NEEDS_IMAGE and not count) and count <= MAX_IMAGES.get(model_type, count):
            _check_logits(model.eval(), partial(_inputs, processor, template), count)


def _check_logits(model: Any, prepare: Callable[[list[Image.Image]], Any], count: int) -> None:
    """Check that the next token depends on the pixels."""
    following = []
    for seed in (0, 1):
        inputs = prepare(_pictures(count, seed))
        with torch.no_grad():
            logits = model(**inputs).logits
            texts = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        assert torch.isfinite(logits).all()
        assert texts.shape[0] == 1
        following.append(logits[0, -1])
    differs = bool((following[0] - following[1]).abs().max() > 1e-3)
    assert differs == bool(count)


def _pictures(count: int, seed: int) -> list[Image.Image]:
    draw = np.random.default_rng(seed)
    sizes = SIZES[:count]
    return [Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


def _inputs(processor: Any, template: str, pictures: list[Image.Image]) -> Any:
    parts: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in pictures]
    parts.insert(1, {"type": "text", "text": "Describe this picture."})
    return processor.apply_chat_template(
        [{"role": "user", "content": parts}],
        chat_template=template,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
    )
