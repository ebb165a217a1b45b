"""A manager over a fake registry, and the few things that every test of it does."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from frameworks.devices import DeviceManager
from frameworks.manager import MLFrameworkManager
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.settings import OnnxModelEntry, PerformanceSettings, SchedulingSettings
from frameworks.slot import ModelSlot
from tests.frameworks.batch_models import FakeRegistry, numbers
from tests.frameworks.fake_probe import FakeProbe


def make_manager(registry: FakeRegistry, drain_timeout_s: float = 5) -> MLFrameworkManager:
    return MLFrameworkManager(
        {"fake": lambda: registry},
        DeviceManager(FakeProbe()),
        PerformanceSettings(max_batch_size=4),
        SchedulingSettings(),
        drain_timeout_s,
    )


def entry(name: str = "m", **settings: Any) -> OnnxModelEntry:
    return OnnxModelEntry(name=name, path=Path("files"), **settings)


def register(manager: MLFrameworkManager, name: str = "m", file: str = "files", **settings: Any) -> ModelSlot:
    return manager.register("fake", entry(name, **settings), Path(file))


@asynccontextmanager
async def serving(
    registry: FakeRegistry, drain_timeout_s: float = 5, **settings: Any
) -> AsyncIterator[MLFrameworkManager]:
    """A manager with the model "m", loaded. `settings`: further keys of its entry."""
    async with make_manager(registry, drain_timeout_s) as manager:
        register(manager, **settings)
        await manager.load("m")
        yield manager


async def ask(manager: MLFrameworkManager, x: object = 1, name: str = "m") -> Any:
    """What a door does: the model, a permit, the answer."""
    slot = manager.slot(name)
    _, dispatcher = slot.ready()
    with permitted(slot) as permit:
        return (await dispatcher.run(numbers(x), begin=permit.begin)).outputs["y"]


@contextmanager
def permitted(slot: ModelSlot) -> Iterator[Permit]:
    """Within, a request holds the model's permit, and that of a server that bounds nothing."""
    permit = Permit(RequestLimit("the server", None, None))
    try:
        slot.admit(permit)
        yield permit
    finally:
        permit.release()
