"""Prompts of conversations with images: bounds before pixels are decoded, placeholders, templates, and positions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Conversation, Message, MessageImage, VisionSpec
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.vision import prompts as module
from frameworks.pytorch.generation.vision.prompts import ImagePrompts
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, conversation, image, sequence, texts_of
from tests.support.models.vision.catalogue import MAKERS

FAMILIES = ("smolvlm", "qwen2_5_vl", "gemma3", "llava_onevision", "mllama")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of each family, loaded when a test asks for it."""
    folder = tmp_path_factory.mktemp("prompts")
    loaded: dict[str, GeneratingModel] = {}

    def model(name: str) -> GeneratingModel:
        if name not in loaded:
            path = folder / name
            path.mkdir()
            MAKERS[name](path)
            loaded[name] = load_generating(path, kv_cache_bytes=1 << 24)
        return loaded[name]

    yield model
    for each in loaded.values():
        each.close()


def prompts_of(model: GeneratingModel) -> ImagePrompts:
    assert model.image_prompts is not None
    return model.image_prompts


def encode(model: GeneratingModel, talk: Conversation, most: int = 400) -> Any:
    return prompts_of(model).encode(talk, model.tokenizer.limit(most), most)


@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_have_a_token_each(models: Any, name: str) -> None:
    model = models(name)
    ids, media = encode(model, conversation(IMAGES))
    assert media.num_tokens == len(ids)
    spans = [span for group in media.groups for span in group.spans]
    assert spans == sorted(spans)
    if media.is_whole:
        assert spans == [(0, len(ids))]
        return
    image_id = prompts_of(model).processing.image_id
    size = model.spec.generation.vocabulary_size
    shown = image_id if image_id < size else 0
    assert {ids[token] for first, end in spans for token in range(first, end)} == {shown}
    for group in media.groups:
        assert len(model._parts.tower.vectors_of(group, "").vectors) == sum(end - first for first, end in group.spans)


@pytest.mark.parametrize("name", ["smolvlm", "qwen2_5_vl", "gemma3"])
def test_tokens_are_counted_before_decoding(models: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models(name)
    own = prompts_of(model)
    _, media = encode(model, conversation(IMAGES))
    taken = sum(end - first for group in media.groups for first, end in group.spans)
    counted = own.processing.num_tokens(own.check(conversation(IMAGES).images))
    assert counted >= taken

    def decode(*_: Any) -> Any:
        raise AssertionError("an image is decoded")

    monkeypatch.setattr(module, "decode_rgb", decode)
    with pytest.raises(InvalidInput, match=rf"expected at most {counted} tokens, the model's context, got {counted}"):
        encode(model, conversation(IMAGES), counted)
    with pytest.raises(AssertionError, match="is decoded"):
        encode(model, conversation(IMAGES), counted + 40)


def test_bounds_are_checked_by_headers(models: Any) -> None:
    own = prompts_of(models("smolvlm"))
    bounded = ImagePrompts(own.processing, own._tokenizer, VisionSpec(2, 48 * 32))
    bounded.check(conversation([IMAGES[0]] * 2).images)
    with pytest.raises(InvalidInput, match="expected at most 2 images, got 3"):
        bounded.check(conversation([IMAGES[0]] * 3).images)
    with pytest.raises(InvalidInput, match=r"messages\[0\]\.content\[0\]: expected at most 1536 pixels"):
        bounded.check(conversation([IMAGES[2]]).images)


def test_sides_beyond_processor_are_refused(models: Any) -> None:
    with pytest.raises(InvalidInput, match="expected files that the model's processor reads") as caught:
        encode(models("qwen2_5_vl"), conversation([image(0, (900, 3))]))
    assert caught.value.field == "messages"


@pytest.mark.parametrize("name", ["smolvlm", "qwen2_5_vl", "llava_onevision"])
def test_placeholder_in_text_is_refused(models: Any, name: str) -> None:
    model = models(name)
    placeholder = prompts_of(model).processing.placeholder
    with pytest.raises(InvalidInput, match="for each of 1 images in the prompt, got it 2 times"):
        encode(model, conversation([IMAGES[0]], f"and {placeholder}"))


def test_template_without_parts_gets_placeholders(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models("smolvlm")
    own = prompts_of(model)
    talk = conversation(IMAGES[:2])
    in_parts = own.render(talk)
    monkeypatch.setattr(own, "_template_has_images", False)
    in_text = own.render(talk)
    assert in_text.count(own.processing.placeholder) == in_parts.count(own.processing.placeholder) == 2
    ids = [encode(model, each)[0] for each in (talk, talk)]
    assert ids[0] == ids[1]


def test_images_are_kept_between_messages(models: Any) -> None:
    model = models("smolvlm")
    [first] = conversation([IMAGES[0]]).messages
    second = replace(first, images=(MessageImage(IMAGES[1], 0, "b"),))
    talk = Conversation((first, Message("assistant", "a ring"), second))
    _, media = encode(model, talk)
    _, swapped = encode(model, Conversation((second, Message("assistant", "a ring"), first)))
    assert [group.key for group in media.groups] == [group.key for group in reversed(swapped.groups)]
    assert len({group.key for group in media.groups}) == 2
    texts = texts_of(model, [sequence(model, 0, talk)])
    assert len(texts[0]) == 8


def test_positions_are_those_of_sections(models: Any) -> None:
    ids, media = encode(models("qwen2_5_vl"), conversation(IMAGES))
    assert media.positions is not None
    assert media.positions.shape == (3, len(ids))
    # An image takes as many positions as its longer side has tokens, which are fewer than its tokens.
    assert media.offset < 0
    assert encode(models("smolvlm"), conversation(IMAGES))[1].positions is None


def test_separate_form_is_found_at_load(models: Any) -> None:
    forms = {name: prompts_of(models(name)).form for name in FAMILIES}
    assert [name for name, form in forms.items() if form.is_separate] == ["smolvlm", "qwen2_5_vl", "gemma3"]
    assert [name for name, form in forms.items() if form.sees_ahead] == ["gemma3"]
    assert [name for name, form in forms.items() if form.is_whole] == ["mllama"]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantized_weights_have_the_same_form(tmp_path: Path, models: Any, dtype: str) -> None:
    """Their logits differ more by rounding than by the mask of images."""
    for name in ("smolvlm", "llava", "gemma3"):
        folder = tmp_path / name
        folder.mkdir()
        MAKERS[name](folder)
        model = load_generating(folder, kv_cache_bytes=1 << 24, dtype=dtype, min_cosine=0.3)
        assert prompts_of(model).form == prompts_of(models(name)).form
        model.close()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # the processor of PaliGemma
def test_images_that_see_texts_are_not_quantized(tmp_path: Path) -> None:
    """The rounding of quantized weights is as large as the change of the logits by causal masks."""
    MAKERS["paligemma"](tmp_path)
    with pytest.raises(InvalidModel, match="its images see the text after them"):
        load_generating(tmp_path, kv_cache_bytes=1 << 24, dtype="int8", min_cosine=0.3)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_narrow_types_read_images(tmp_path: Path, dtype: str) -> None:
    MAKERS["smolvlm"](tmp_path)
    model = load_generating(tmp_path, kv_cache_bytes=1 << 24, dtype=dtype)
    assert model.spec.generation.unpaged_because is None
    assert len(texts_of(model, [sequence(model, 0, conversation(IMAGES[:2]))])[0]) == 8
    model.close()


def test_folder_without_processor_is_refused_by_key(tmp_path: Path) -> None:
    MAKERS["llava"](tmp_path)
    for name in ("processor_config.json", "preprocessor_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(InvalidModel, match="set vision = false to serve texts alone"):
        load_generating(tmp_path, kv_cache_bytes=1 << 24)
    model = load_generating(tmp_path, kv_cache_bytes=1 << 24, vision=False)
    assert model.image_prompts is None
    assert len(texts_of(model, [sequence(model, 0, conversation([]))])[0]) == 8
    model.close()


def test_ranks_read_no_images(tmp_path: Path) -> None:
    MAKERS["llava"](tmp_path)
    with pytest.raises(InvalidModel, match="tensor_parallel: expected a language model of texts alone"):
        load_generating(tmp_path, kv_cache_bytes=1 << 24, tensor_parallel=2)
