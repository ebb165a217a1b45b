"""Load the instances of a model with what its entry says of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.engine.loading import load_instances
from frameworks.types import ModelSpec, Task, TextSpec


def loaded(spec: ModelSpec, dimensions: list[int] | None) -> list[Any]:
    """Load two instances of a model that has this spec."""
    devices = DeviceManager(SystemProbe())
    instances = [SimpleNamespace(spec=spec, warm_up=lambda: None, close=lambda: closed.append(1)) for _ in range(2)]
    closed: list[int] = []
    registry: Any = SimpleNamespace(load=lambda *_: instances)
    entry = TorchModelEntry.model_validate({"name": "m", "path": Path("m"), "dimensions": dimensions})
    try:
        return [*load_instances(registry, entry, Path("m"), devices.host(), devices).instances]
    except InvalidModel:
        assert closed == [1, 1]
        raise


def spec_of(task: Task, text: TextSpec | None) -> ModelSpec:
    return ModelSpec("pytorch", task, (), (), "cpu", "float32", memory_bytes=0, text=text)


@pytest.mark.parametrize(
    ("size", "dimensions", "shorter"),
    [(24, [16, 8, 16], (8, 16)), (24, [24, 8], (8,)), (None, [500], (500,)), (24, None, (4,))],
)
def test_entry_declares_shorter_embeddings(
    size: int | None, dimensions: list[int] | None, shorter: tuple[int, ...]
) -> None:
    spec = spec_of("embed", TextSpec(16, embedding_size=size, shorter_sizes=(4,)))
    for instance in loaded(spec, dimensions):
        assert instance.spec.text.shorter_sizes == shorter


def test_longer_embeddings_are_refused() -> None:
    with pytest.raises(InvalidModel, match="dimensions: expected sizes up to 24, that of the embeddings, got 32"):
        loaded(spec_of("embed", TextSpec(16, embedding_size=24)), [8, 32])


@pytest.mark.parametrize(("task", "text"), [("classify", TextSpec(16)), ("tensor", None), ("embed", None)])
def test_dimensions_of_other_models_are_refused(task: Task, text: TextSpec | None) -> None:
    with pytest.raises(InvalidModel, match=f"expected a model that embeds texts, got one whose task is {task}"):
        loaded(spec_of(task, text), [8])
