"""Every model type of transformers that reads images: served with the texts of `generate`, or refused by name."""

import re
from pathlib import Path

import pytest
import transformers

from frameworks.core.errors import InvalidModel
from frameworks.generation.image_text_models import NOT_SERVED, SERVED
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.vision.seeing import (
    IMAGES,
    compare,
    conversation,
    image,
    sequence,
    texts_of,
)
from tests.support.models.vision.catalogue import (
    BY_CACHES,
    CACHE_DIFFERS,
    MAKERS,
    MODEL_TYPES,
    NEEDS_ALWAYS,
    NEEDS_IMAGE,
    NOT_BUILT,
    NOT_GENERATED,
    REFUSED,
)

REASONS = {
    CACHE_DIFFERS: "with transformers' own cache the model's logits are off by",
    NEEDS_ALWAYS: "the model does not run: ",
    NOT_GENERATED: "transformers does not generate of images",
}
"""Reason of the catalogue to a part of the error."""
OWN_TEXT_PROMPTS = ("emu3", "chameleon")
"""Model types whose processor adds tokens to a prompt without images, which no chat template and no tokenizer has."""

READS_ARRAYS = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
"""transformers' processors pass tensors to NumPy."""

SEEING = [name for name in MAKERS if name not in REFUSED]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vision")


def make(folders: Path, name: str) -> Path:
    folder = folders / name
    if not folder.exists():
        folder.mkdir()
        MAKERS[name](folder)
    return folder


@READS_ARRAYS
@pytest.mark.parametrize("name", SEEING)
def test_texts_equal_those_of_generate(folders: Path, name: str) -> None:
    has_text_prompts = name not in (*NEEDS_IMAGE, *OWN_TEXT_PROMPTS)
    unpaged_because = compare(make(folders, name), (0, 1, 3) if has_text_prompts else (1, 3))
    assert (unpaged_because is not None) == (name in BY_CACHES)


@READS_ARRAYS
@pytest.mark.parametrize("name", [name for name in REFUSED if name in MAKERS])
def test_other_types_are_refused_by_reason(folders: Path, name: str) -> None:
    with pytest.raises(InvalidModel, match=re.escape(REASONS[REFUSED[name]])):
        load_generating(make(folders, name), kv_cache_bytes=1 << 24)


def test_census_knows_every_type() -> None:
    assert set(MODEL_TYPES) == {*MAKERS, *(NOT_BUILT.keys() & MODEL_TYPES.keys())}
    known = SERVED | NOT_SERVED.keys() | {"Mistral4ForCausalLM"}  # which reads texts alone
    assert {MODEL_TYPES[name] for name in MODEL_TYPES} <= known
    assert all(hasattr(transformers, name) for name in known)
    assert SERVED.isdisjoint(NOT_SERVED)


@pytest.mark.parametrize("name", ["smolvlm", "gemma3"])
def test_equal_pixels_share_prefix(folders: Path, name: str) -> None:
    model = load_generating(make(folders, name), kv_cache_bytes=1 << 24)
    first, again, other = (
        sequence(model, number, conversation([file, IMAGES[1]]))
        for number, file in enumerate((IMAGES[0], IMAGES[0], image(9)))
    )
    assert first.prompt_ids == again.prompt_ids == other.prompt_ids
    hits = []
    for each in (first, again, other):
        before = model._parts.scheduler.stats(1).prefix_hit_tokens
        texts_of(model, [each])
        hits.append(model._parts.scheduler.stats(1).prefix_hit_tokens - before)
    assert hits[0] == 0
    assert hits[1] == (len(first.prompt_ids) - 1) // 32 * 32 > 0
    assert hits[2] < hits[1]
    model.close()
