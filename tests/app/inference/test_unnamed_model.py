"""The model that a request means which names none."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.inference.unnamed_model import Kind, UnnamedModel
from frameworks.core.errors import InvalidInput, ModelFailed
from frameworks.generation.types import GenerationSpec, VisionSpec
from frameworks.models.versions.slot import ModelSlot
from frameworks.types import ModelSpec, Task, TextSpec


def slot(name: str, task: Task | None = None, num_labels: int = 0, known: object = None) -> ModelSlot:
    """Return a stand-in. `task` None: not loaded. `known`: the spec of its last load, or the error of that."""

    def known_spec() -> Any:
        if isinstance(known, Exception):
            raise known
        return known

    spec = None if task is None else spec_of(task, num_labels)
    active = SimpleNamespace(known_spec=known_spec)
    return cast(ModelSlot, SimpleNamespace(name=name, names=(name,), spec=spec, active=active))


def spec_of(task: Task, num_labels: int = 0, vision: VisionSpec | None = None) -> ModelSpec:
    text = TextSpec(16, labels=tuple(map(str, range(num_labels))))
    generation = GenerationSpec(16, 16, vision=vision) if task == "generate" else None
    return ModelSpec("pytorch", task, (), (), "cpu", "float32", 0, text, generation=generation)


DIGITS, MINILM, LLAMA = slot("digits", "tensor"), slot("minilm", "embed"), slot("llama", "generate")
RANKER, MOODS = slot("ranker", "classify", 1), slot("moods", "classify", 3)
ALL = [DIGITS, MINILM, LLAMA, RANKER, MOODS]


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        (("generate",), "llama"),
        (("embed",), "minilm"),
        (("rerank", "embed"), "ranker"),
        (("embed", "rerank"), "minilm"),
        (("classify", "rerank"), "moods"),
    ],
)
def test_first_kind_with_a_model_decides(kinds: tuple[Kind, ...], name: str) -> None:
    assert UnnamedModel(kinds).name_in(ALL) == name


def test_placeholder_means_only_model() -> None:
    unnamed = UnnamedModel(("embed",), placeholder="tgi")
    assert unnamed.name_in(ALL) == "minilm"
    with pytest.raises(InvalidInput, match='got "tgi", and minilm, other embed texts; name one'):
        unnamed.name_in([*ALL, slot("other", "embed")])


def test_model_named_as_placeholder_is_meant() -> None:
    assert UnnamedModel(("embed",), placeholder="tgi").name_in([*ALL, slot("tgi", "generate")]) == "tgi"


def test_long_address_is_shown_in_part() -> None:
    address = "http://" + "a" * 9999
    with pytest.raises(InvalidInput) as refused:
        UnnamedModel(("embed",), placeholder=address).name_in([*ALL, slot("other", "embed")])
    assert len(str(refused.value)) < 200


def test_next_kind_is_used_without_first() -> None:
    assert UnnamedModel(("classify", "rerank")).name_in([DIGITS, RANKER]) == "ranker"


def test_several_candidates_are_named() -> None:
    with pytest.raises(InvalidInput, match="got none, and minilm, other embed texts; name one") as refused:
        UnnamedModel(("embed",), "model_name").name_in([*ALL, slot("other", "embed")])
    assert refused.value.field == "model_name"
    with pytest.raises(InvalidInput, match="and 5 more embed texts"):
        UnnamedModel(("embed",)).name_in([slot(f"m{i}", "embed") for i in range(15)])


def test_no_candidate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no model whose task is classify or embed is loaded"):
        UnnamedModel(("rerank", "classify", "embed")).name_in([DIGITS, LLAMA])


def test_evicted_model_is_a_candidate() -> None:
    evicted = slot("evicted", known=spec_of("embed"))
    assert UnnamedModel(("embed",)).name_in([DIGITS, evicted]) == "evicted"
    with pytest.raises(InvalidInput, match="minilm, evicted embed texts"):
        UnnamedModel(("embed",)).name_in([MINILM, evicted])


def test_model_never_loaded_answers_only_alone() -> None:
    lazy = slot("lazy")
    assert UnnamedModel(("embed",)).name_in([DIGITS, lazy]) == "lazy"
    assert UnnamedModel(("embed",)).name_in([MINILM, lazy]) == "minilm"
    with pytest.raises(InvalidInput, match="no model whose task is embed is loaded"):
        UnnamedModel(("embed",)).name_in([lazy, slot("lazy-2")])


def test_only_text_generator_without_images_is_meant() -> None:
    unnamed = UnnamedModel(("generate",))
    seeing = slot("seeing", known=spec_of("generate", vision=VisionSpec(1, 1)))
    assert unnamed.name_in([seeing]) == "seeing"
    assert unnamed.name_in([seeing, LLAMA]) == "llama"
    with pytest.raises(InvalidInput, match="seeing, other generate text"):
        unnamed.name_in([seeing, slot("other", known=spec_of("generate", vision=VisionSpec(1, 1)))])
    with pytest.raises(InvalidInput, match="seeing, llama, other generate text"):
        unnamed.name_in([seeing, LLAMA, slot("other", "generate")])


def test_failed_model_is_no_candidate() -> None:
    with pytest.raises(InvalidInput, match="no model whose task is embed is loaded"):
        UnnamedModel(("embed",)).name_in([slot("failed", known=ModelFailed("damaged"))])
