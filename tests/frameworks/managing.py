"""A manager over a fake registry, and the few things that every test of it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from frameworks.devices import DeviceManager
from frameworks.manager import MLFrameworkManager
from frameworks.settings import OnnxModelEntry, PerformanceSettings, SchedulingSettings
from frameworks.slot import ModelSlot
from tests.frameworks.batch_models import FakeRegistry, numbers
from tests.frameworks.fake_probe import FakeProbe


def make_manager(registry: FakeRegistry, max_queue_size: int = 8, drain_timeout_s: float = 5) -> MLFrameworkManager:
    return MLFrameworkManager(
        {"fake": lambda: registry},
        DeviceManager(FakeProbe()),
        PerformanceSettings(max_batch_size=4),
        SchedulingSettings(max_queue_size=max_queue_size),
        drain_timeout_s,
    )


def entry(name: str = "m", **settings: Any) -> OnnxModelEntry:
    return OnnxModelEntry(name=name, path=Path("files"), **settings)


def register(manager: MLFrameworkManager, name: str = "m", file: str = "files") -> ModelSlot:
    return manager.register("fake", entry(name), Path(file))


@asynccontextmanager
async def serving(registry: FakeRegistry, **settings: Any) -> AsyncIterator[MLFrameworkManager]:
    """A manager with the model "m", loaded."""
    async with make_manager(registry, **settings) as manager:
        register(manager)
        await manager.load("m")
        yield manager


async def ask(manager: MLFrameworkManager, x: object = 1, name: str = "m") -> Any:
    """What a door does: the model, a permit, the answer."""
    slot = manager.slot(name)
    _, lane = slot.ready()
    with slot.permit():
        return (await lane.run(numbers(x))).outputs["y"]
