"""Models with a process of their own in a manager: loads, crashes, unloads, and no process left behind."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from frameworks.core.devices import DeviceManager
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.process.client import process_registry
from frameworks.engine.registries import RegistrySettings
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.models.residency.processes import ProcessStarter, select_cpus
from frameworks.models.versions.states import ModelState
from frameworks.types import TensorBatch
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task
from tests.support.managing import opened, permit
from tests.support.models.onnx_graphs import add, save


@asynccontextmanager
async def managed(path: Path, **entry: Any) -> AsyncIterator[MLFrameworkManager]:
    """Register the model "m" with a process of its own. After the block no process is left."""
    registries = RegistrySettings(max_model_size=None, cache_dir=path.parent, ageing_ms=1000.0)
    loader = Loader({}, DeviceManager(FakeProbe()), ProcessStarter(registries))
    async with MLFrameworkManager(loader, PerformanceSettings(), SchedulingSettings(), HANGS_AFTER_S) as manager:
        settings = OnnxModelEntry(name="m", path=path, isolation="process", **entry)
        manager.register("onnx", settings, path)
        yield manager
    await soon(lambda: not process_registry.count())


async def ask(manager: MLFrameworkManager, x: float) -> float:
    """Return x + x."""
    with permit() as held:
        version = await opened(manager, held)
        held.queue(version.model.requests)
        value = np.full((1, 4), x, np.float32)
        outputs = await version.engine().submit(TensorBatch({"a": value, "b": value}), begin=held.begin)
    array = outputs["sum"]
    assert isinstance(array, np.ndarray)
    return float(array[0, 0])


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return save(add(), tmp_path / "adder.onnx")


def engine_pids() -> list[int]:
    """Return the processes of models that this process has started."""
    children = psutil.Process().children()
    return [child.pid for child in children if "roundhouse-engine" in " ".join(child.cmdline())]


@in_loop
async def test_model_answers_from_its_process(graph: Path) -> None:
    async with managed(graph) as manager:
        slot = await manager.load("m")
        assert len(engine_pids()) == process_registry.count() == 1
        assert await ask(manager, 2.0) == 4.0
        assert slot.batches.sizes == {1: 1}
        assert slot.spec is not None
        # The process is counted too.
        assert slot.memory_bytes > 10 * slot.spec.memory_bytes
        await manager.unload("m")
        assert slot.state is ModelState.UNLOADED
        await soon(lambda: not process_registry.count())


@pytest.mark.extended
@in_loop
async def test_process_has_niceness_of_entry(graph: Path) -> None:
    own = psutil.Process().nice()
    async with managed(graph, niceness=3) as manager:
        await manager.load("m")
        [pid] = engine_pids()
        assert psutil.Process(pid).nice() == min(own + 3, 19)


@pytest.mark.parametrize(
    ("entry", "is_background", "niceness"), [({}, False, 0), ({}, True, 10), ({"niceness": 0}, True, 0)]
)
@in_loop
async def test_background_version_has_low_priority(
    entry: dict[str, int], is_background: bool, niceness: int, graph: Path
) -> None:
    async with managed(graph, **entry) as manager:
        version = manager.slot("m").active
        version.is_background = is_background
        assert ProcessStarter(None)._options(version, 0).niceness == niceness


@pytest.mark.extended
@in_loop
async def test_model_is_failed_until_its_restart(graph: Path) -> None:
    async with managed(graph) as manager:
        slot = await manager.load("m")
        [first] = engine_pids()
        psutil.Process(first).send_signal(signal.SIGSEGV)
        await soon(lambda: slot.state is ModelState.FAILED)
        assert slot.reason is not None
        assert "SIGSEGV" in slot.reason
        answer = task(ask(manager, 3.0))
        assert await answer == 6.0
        assert slot.state is ModelState.READY
        assert engine_pids() != [first]


@pytest.mark.extended
@in_loop
async def test_operator_loads_model_before_its_restart(graph: Path) -> None:
    async with managed(graph) as manager:
        slot = await manager.load("m")
        psutil.Process(engine_pids()[0]).kill()
        await soon(lambda: slot.state is ModelState.FAILED)
        await manager.load("m")
        assert (slot.state, slot.loads) == (ModelState.READY, 2)
        assert await ask(manager, 1.0) == 2.0
        assert process_registry.count() == 1


@pytest.mark.extended
@in_loop
async def test_measured_process_ends_without_load(graph: Path) -> None:
    async with managed(graph) as manager:
        version = manager.slot("m").active
        loader = manager.residency._loader
        assert (await loader.needs(version)).host_bytes > 0
        assert process_registry.count() == 1
        loader.discard(version)
        await soon(lambda: not process_registry.count())


@in_loop
async def test_cancelled_load_ends_its_process(graph: Path) -> None:
    async with managed(graph) as manager:
        version = manager.slot("m").active
        loader = manager.residency._loader
        needs = task(loader.needs(version))
        await soon(lambda: process_registry.count() == 1)
        needs.cancel()
        with pytest.raises(asyncio.CancelledError):
            await needs
        await soon(lambda: not process_registry.count())


@pytest.mark.extended
@in_loop
async def test_damaged_file_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "adder.onnx").write_bytes(b"no graph")
    async with managed(tmp_path / "adder.onnx") as manager:
        with pytest.raises(InvalidModel):
            await manager.load("m")
        await soon(lambda: not process_registry.count())


@in_loop
async def test_unknown_cpus_are_invalid(graph: Path) -> None:
    async with managed(graph, cpus="9999") as manager:
        with pytest.raises(InvalidModel, match="cpus: expected CPUs"):
            await manager.load("m")
        assert not process_registry.count()


@pytest.fixture(autouse=True)
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server use the CPUs 2 to 5 of the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 5}, raising=False)


def test_entry_without_cpus_selects_none() -> None:
    assert select_cpus(None) is None


def test_usable_cpus_are_selected() -> None:
    assert select_cpus("2,4-5") == frozenset({2, 4, 5})


def test_unusable_cpus_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r'expected CPUs that the server may use \("2-5"\), got "0-1,6" beside them'):
        select_cpus("0-6")


def test_cpus_not_checked_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert select_cpus("0-6") == frozenset(range(7))
