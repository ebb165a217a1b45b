"""Fake models of chosen sizes in a manager with little memory, and helpers to observe them."""

import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import InvalidModel, ModelFailed
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.slot import ModelSlot
from frameworks.runtime import BatchModel, ModelEntry
from tests.support.batch_models import Behaviour, DoublingModel, FakeRegistry, Gate, numbers
from tests.support.fake_probe import GIB
from tests.support.managing import make_manager, opened, permit, register


class SizedRegistry(FakeRegistry):
    """A registry of models of 1 GiB, or of their `sizes`; the memory of the tests themselves is small beside it.

    Keys are the name of the model, `m`, or of a version with a folder, `m/2`.
    """

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        super().__init__(behaviour)
        self.sizes: dict[str, int] = {}
        self.estimates: dict[str, int] = {}
        """Estimated bytes, where they differ from the sizes."""
        self.gates: dict[str, Gate] = {}
        """Block a load until the gate is opened."""
        self.broken: set[str] = set()
        self.crashing: set[str] = set()
        """Their process ends while they load."""
        self.loads: list[str] = []
        """In the order of their start."""
        self.of: dict[str, DoublingModel] = {}
        """The instance of the last load."""
        self.most_at_once: Counter[str] = Counter()
        self._at_once: Counter[str] = Counter()
        self._lock = threading.Lock()

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        name = _name(entry, path)
        size_bytes = self.estimates.get(name, self.sizes.get(name, GIB))
        return ModelNeeds(size_bytes, size_bytes)

    def load(self, entry: ModelEntry, path: Path, device: Device) -> list[BatchModel]:
        name = _name(entry, path)
        with self._lock:
            self.loads.append(name)
            self._at_once[name] += 1
            self.most_at_once[name] = max(self.most_at_once[name], self._at_once[name])
        try:
            if name in self.gates:
                self.gates[name]()
            if name in self.broken:
                raise InvalidModel(f"{name} is broken")
            if name in self.crashing:
                raise ModelFailed("its process ended")
            instances = [self.make(name, self.sizes.get(name, GIB)) for _ in range(entry.instances)]
            self.made += instances
            self.of[name] = instances[0]
            return [*instances]
        finally:
            with self._lock:
                self._at_once[name] -= 1

    def make(self, name: str, size_bytes: int) -> DoublingModel:
        """Return an instance of a model."""
        return DoublingModel(self.behaviour, size_bytes)

    @property
    def are_all_closed(self) -> bool:
        return all(model.is_closed for model in self.made)


def _name(entry: ModelEntry, path: Path) -> str:
    return f"{entry.name}/{path.name}" if path.name.isdecimal() else entry.name


def register_lazy(manager: MLFrameworkManager, *names: str, **settings: Any) -> list[ModelSlot]:
    """Register models that their first request loads."""
    return [register(manager, name, load="lazy", **settings) for name in names]


def make_versions(folder: Path, *numbers: int) -> Path:
    """Create version folders, and return the path of the model."""
    for number in numbers:
        (folder / str(number)).mkdir(parents=True)
    return folder


async def infer(manager: MLFrameworkManager, name: str = "m", x: object = 1, named: str | None = None) -> str:
    """Send a request, check the answer, and return the version that answered."""
    with permit() as held:
        version = await opened(manager, held, name, named)
        held.queue(version.model.requests)
        result = await version.engine().submit(numbers(x), begin=held.begin)
        assert result["y"] == [x * 2 if isinstance(x, int) else None]
        return version.version


def states(manager: MLFrameworkManager) -> dict[str, str]:
    return {slot.name: slot.state.value for slot in manager.slots}


async def error_of(request: Coroutine[Any, Any, Any]) -> BaseException | None:
    """Return the error of a request; None if it is answered."""
    try:
        await request
    except Exception as error:  # noqa: BLE001 - to be looked at
        return error
    return None


def check_settled(manager: MLFrameworkManager) -> None:
    """Check that no request is counted, and that exactly the loaded versions hold memory."""
    ledger = manager.residency.ledger
    ledger.check_integrity()
    for slot in manager.slots:
        assert (slot.requests.inflight, slot.requests.waiting) == (0, 0)
        for version in slot.versions.values():
            assert (version.references, version.load_task) == (0, None), version
            assert (ledger.budget.held_by(version) > 0) == (version.spec is not None), version


def die(x: list[object]) -> None:
    if x == ["die"]:
        raise SystemExit


@asynccontextmanager
async def lazy_models(
    names: str = "abc", capacity_gib: int = 2, behaviour: Any = None, min_residency_s: float = 0.0, **settings: Any
) -> AsyncIterator[tuple[SizedRegistry, MLFrameworkManager]]:
    """Yield lazy models of 1 GiB and memory for `capacity_gib` of them; check at the end that all is released."""
    registry = SizedRegistry(behaviour)
    capacity = capacity_gib * GIB
    async with make_manager(registry, max_model_bytes=capacity, min_residency_s=min_residency_s) as manager:
        register_lazy(manager, *names, **settings)
        yield registry, manager
        check_settled(manager)
    assert registry.are_all_closed
    assert manager.residency.ledger.budget.used("cpu") == 0
    assert all(count == 1 for count in registry.most_at_once.values())


async def kill(manager: MLFrameworkManager, name: str) -> None:
    with capture_logs(), pytest.raises(ModelFailed):
        await infer(manager, name, "die")


@asynccontextmanager
async def versioned_model(
    path: Path, *numbers: int, capacity_gib: int = 9, behaviour: Any = None, **settings: Any
) -> AsyncIterator[tuple[SizedRegistry, MLFrameworkManager]]:
    """Yield the model "m" with version folders, each of 1 GiB; check at the end that all is released."""
    registry = SizedRegistry(behaviour)
    async with make_manager(registry, max_model_bytes=capacity_gib * GIB) as manager:
        register(manager, file=str(make_versions(path, *numbers)), **settings)
        yield registry, manager
        check_settled(manager)
    assert registry.are_all_closed
    assert manager.residency.ledger.budget.used("cpu") == 0


def loaded_versions(manager: MLFrameworkManager) -> list[str]:
    return [name for name, version in manager.slot("m").versions.items() if version.is_ready]
