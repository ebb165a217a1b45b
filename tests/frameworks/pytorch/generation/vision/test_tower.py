"""The vectors of images: computed once for each tenant, within a bound of bytes, and beside running texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks.core.tenants import Tenant
from frameworks.generation.media import ImageGroup
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.vision.tower import VisionTower
from tests.frameworks.pytorch.generation.generating import load_generating, request, stepped
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, TOKENS, conversation, image, sequence, texts_of
from tests.support.models.vision.catalogue import MAKERS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tower")
    MAKERS["smolvlm"](path)
    return path


@pytest.fixture
def model(folder: Path) -> Iterator[GeneratingModel]:
    loaded = load_generating(folder, kv_cache_bytes=1 << 24)
    yield loaded
    loaded.close()


def tower_of(model: GeneratingModel) -> VisionTower:
    assert model._parts is not None
    assert model._parts.tower is not None
    return model._parts.tower


class Counter:
    """Count the runs of a tower."""

    def __init__(self, tower: VisionTower, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        compute = tower.compute

        def counted(inputs: Any) -> Any:
            self.runs += 1
            return compute(inputs)

        monkeypatch.setattr(tower, "compute", counted)


def test_equal_files_are_computed_once(model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(tower_of(model), monkeypatch)
    talks = [conversation([IMAGES[0], IMAGES[1]]), conversation([IMAGES[1]], " and now"), conversation([IMAGES[0]])]
    texts_of(model, [sequence(model, number, talk) for number, talk in enumerate(talks)])
    assert counter.runs == 2


def test_tenants_share_no_vectors(model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(tower_of(model), monkeypatch)
    talk = conversation([IMAGES[0]])
    first, second = (sequence(model, number, talk, tenant=Tenant(name)) for number, name in enumerate("ab"))
    assert texts_of(model, [first])[0] == texts_of(model, [second])[1]
    assert counter.runs == 2


def test_cache_is_bounded_in_bytes(model: GeneratingModel) -> None:
    tower = tower_of(model)
    talk = conversation([IMAGES[0]])
    own = sequence(model, 0, talk).media
    assert own is not None
    [group] = own.groups
    size = tower.vectors_of(group, "").nbytes
    bounded = VisionTower(tower._whole, 3 * size)
    for number in range(8):
        bounded.vectors_of(ImageGroup(-10 - number, group.inputs, group.spans), "")
        assert bounded.cached_bytes == min(number + 1, 3) * size
    assert [bounded.has(ImageGroup(-10 - number, {}, ((0, 1),)), "") for number in range(8)] == [False] * 5 + [True] * 3
    smallest = VisionTower(tower._whole, 1)
    smallest.vectors_of(group, "")
    assert smallest.has(group, ""), "the image of the next step stays"


def test_other_number_of_vectors_is_refused(model: GeneratingModel) -> None:
    own = sequence(model, 0, conversation([IMAGES[0]])).media
    assert own is not None
    [group] = own.groups
    wrong = ImageGroup(group.key, group.inputs, (group.spans[0],))
    with pytest.raises(ValueError, match="image tokens, got"):
        tower_of(model).vectors_of(wrong, "")


def test_texts_continue_between_slices(model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model._parts is not None
    monkeypatch.setattr(model._parts.scheduler.cost, "image_seconds", lambda _: 0.0)
    model.add(request(0, (5, 6, 7), 400))
    while not stepped(model).tokens:
        pass
    seeing = sequence(model, 1, conversation([IMAGES[0]]))
    model.add(seeing)
    steps = 0
    while True:
        tokens = {token.sequence_id for token in stepped(model).tokens}
        assert 0 in tokens, "the text has a token in each step"
        steps += 1
        if 1 in tokens:
            break
    assert steps > 10, "a slice without time is one layer of the tower"
    model.abort(0)
    found = [token.token_id for token in _run_out(model)]
    alone = load_alone(model, seeing)
    assert alone[-len(found) :] == found
    assert len(found) == TOKENS - 1


def load_alone(model: GeneratingModel, seeing: Any) -> list[int]:
    return texts_of(model, [seeing])[seeing.sequence_id]


def _run_out(model: GeneratingModel) -> Iterator[Any]:
    while model.has_work:
        yield from stepped(model).tokens


def test_cancelled_text_drops_its_image(model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model._parts is not None
    monkeypatch.setattr(model._parts.scheduler.cost, "image_seconds", lambda _: 0.0)
    model.add(sequence(model, 0, conversation([image(7)])))
    for _ in range(3):
        stepped(model)
    model.abort(0)
    assert not model.has_work
    monkeypatch.undo()
    talk = conversation([IMAGES[2]])
    assert len(texts_of(model, [sequence(model, 1, talk)])[1]) == TOKENS


@pytest.mark.parametrize("error", [RuntimeError("a broken tower"), torch.OutOfMemoryError("out of memory")])
def test_failing_image_fails_its_text_alone(
    model: GeneratingModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: Any) -> Any:
        raise error

    monkeypatch.setattr(tower_of(model), "compute", fail)
    model.add(request(0, (5, 6, 7), 12))
    model.add(sequence(model, 1, conversation([IMAGES[0]])))
    failed, tokens = [], []
    while model.has_work:
        result = stepped(model)
        failed += [number for number, _ in result.failed]
        tokens += [token.sequence_id for token in result.tokens]
    assert failed == [1]
    assert tokens == [0] * 12
    monkeypatch.undo()
    assert len(texts_of(model, [sequence(model, 2, conversation([IMAGES[0]]))])[2]) == TOKENS


def test_work_on_images_is_charged(model: GeneratingModel) -> None:
    tenant = Tenant("seeing")
    model.add(sequence(model, 0, conversation([IMAGES[0]]), tenant=tenant))
    costs: list[tuple[Tenant, float]] = []
    while model.has_work:
        costs += stepped(model).costs
    assert all(charged == tenant for charged, _ in costs)
    assert any(cost > 0 and cost not in (1, 1.0) for _, cost in costs)
