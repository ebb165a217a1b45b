"""A manager over a fake registry, and the steps that its tests share."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.local import LocalEngine
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion, VersionNotLoaded
from frameworks.runtime import Registry
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.shared_limits import SharedLimits
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from tests.support.batch_models import numbers
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S


def make_manager(
    registry: Registry,
    drain_timeout_s: float = HANGS_AFTER_S,
    max_model_bytes: int | None = None,
    probe: FakeProbe | None = None,
    min_residency_s: float = 0.0,
    shared_limits: SharedLimits | None = None,
) -> MLFrameworkManager:
    return MLFrameworkManager(
        Loader({"fake": lambda: registry}, DeviceManager(probe or FakeProbe())),
        PerformanceSettings(max_batch_size=4),
        SchedulingSettings(min_residency_s=min_residency_s),
        drain_timeout_s,
        max_model_bytes,
        shared_limits=shared_limits,
    )


def entry(name: str = "m", **settings: Any) -> OnnxModelEntry:
    return OnnxModelEntry(name=name, path=Path("files"), **settings)


def register(manager: MLFrameworkManager, name: str = "m", file: str = "files", **settings: Any) -> ModelSlot:
    return manager.register("fake", entry(name, **settings), Path(file))


@asynccontextmanager
async def serving(
    registry: Registry, drain_timeout_s: float = HANGS_AFTER_S, **settings: Any
) -> AsyncIterator[MLFrameworkManager]:
    """Start a manager with the loaded model "m". `settings`: further keys of its entry."""
    async with make_manager(registry, drain_timeout_s) as manager:
        register(manager, **settings)
        await manager.load("m")
        yield manager


async def ask(manager: ServedModels, x: object = 1, name: str = "m") -> Any:
    """Send one request as a protocol does: take a permit, find the version, run it."""
    with permit() as held:
        version = await opened(manager, held, name)
        held.queue(version.model.requests)
        return (await version.engine().submit(numbers(x), begin=held.begin))["y"]


async def opened(manager: ServedModels, held: Permit, name: str = "m", named: str | None = None) -> ModelVersion:
    """Acquire the version for a request, and wait for its load where that is allowed."""
    while True:
        slot = manager.slot(name)
        version = slot.route() if named is None else slot.version_named(named)
        try:
            spec = version.spec_for(held)
        except VersionNotLoaded:
            await manager.wait_for(version, held)
            continue
        if version.acquire(held, spec):
            return version


def step_dispatcher(version: ModelVersion) -> StepDispatcher:
    """Return the dispatcher of a loaded model that generates text in this process."""
    engine = version.engine()
    assert isinstance(engine, LocalEngine)
    assert isinstance(engine.dispatcher, StepDispatcher)
    return engine.dispatcher


@contextmanager
def permit(limited: Permit | None = None) -> Iterator[Permit]:
    """Yield this permit, or that of a server without limits; release it at the end."""
    held = limited or Permit(RequestLimit("the server", None, None))
    try:
        yield held
    finally:
        held.release()


@contextmanager
def permitted(slot: ModelSlot) -> Iterator[Permit]:
    """Queue a request to a loaded model; it holds a reference within the block."""
    with permit() as held:
        version = slot.route()
        spec = version.spec_for(held)
        held.queue(slot.requests)
        assert version.acquire(held, spec)
        yield held
