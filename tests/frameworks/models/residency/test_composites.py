"""Test composite models: the loader of their framework gets the loads, after those of other models."""

from pathlib import Path
from typing import ClassVar

from structlog.testing import capture_logs

from frameworks.core.errors import EvictionNeeded
from frameworks.core.settings.composites import CompositeModelEntry
from frameworks.engine.contract import Engine
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion
from tests.frameworks.models.sized_registry import SizedRegistry, states
from tests.support.loops import in_loop
from tests.support.managing import make_manager, register


class Copies(CompositeModelEntry):
    """A composite model that answers as the model "m"."""

    framework: ClassVar[str] = "copies"

    @property
    def models(self) -> frozenset[str]:
        return frozenset(["m"])

    @property
    def collections(self) -> frozenset[str]:
        return frozenset()

    @property
    def definition(self) -> dict[str, object]:
        return {}


class CopiesLoader:
    """Implement CompositeLoader: the engine of a copy is that of its model."""

    def __init__(self, manager: MLFrameworkManager, registry: SizedRegistry) -> None:
        self._manager = manager
        self._registry = registry
        self.is_lazy = False
        self.is_closed = False

    async def load(self, version: ModelVersion) -> Engine:
        self._registry.loads.append(version.model.name)
        return self._manager.slot("m").active.engine()

    def check_at_start(self, version: ModelVersion) -> None:
        if self.is_lazy:
            raise EvictionNeeded("its model is loaded by the first request")

    def close(self) -> None:
        self.is_closed = True


def register_copy(manager: MLFrameworkManager, loader: CopiesLoader) -> ModelSlot:
    manager.composites["copies"] = loader
    return manager.register("copies", Copies(name="copy", path=Path()), Path("copies"))


@in_loop
async def test_composite_is_loaded_after_other_models() -> None:
    registry = SizedRegistry()
    manager = make_manager(registry)
    loader = CopiesLoader(manager, registry)
    async with manager:
        copy = register_copy(manager, loader)
        register(manager, "m")
        await manager.load_registered()
        assert registry.loads == ["m", "copy"]
        assert (copy.identity.is_composite, copy.has_folders, copy.memory_bytes) == (True, False, 0)
        assert not loader.is_closed
    assert loader.is_closed


@in_loop
async def test_composite_of_lazy_model_is_not_loaded() -> None:
    registry = SizedRegistry()
    async with make_manager(registry) as manager:
        loader = CopiesLoader(manager, registry)
        loader.is_lazy = True
        register_copy(manager, loader)
        with capture_logs():
            await manager.load_registered()
        assert states(manager) == {"copy": "registered"}
        assert registry.loads == []
