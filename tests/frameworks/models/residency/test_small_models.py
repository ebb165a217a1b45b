"""With several workers only small graphs stay out of a process: each worker loads them, and the ledger counts that."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.process.client import process_registry
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency import small_models
from frameworks.models.residency.loader import Loader
from frameworks.models.residency.processes import ProcessStarter
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S, in_loop, soon
from tests.support.models.onnx_graphs import add, save
from tests.support.models.onnx_recurrent import running_sum

pytestmark = pytest.mark.extended

WORKERS = 2
MOVED = "model moves to a process of its own, which all workers share"


@asynccontextmanager
async def managed(path: Path, num_workers: int = WORKERS, **entry: Any) -> AsyncIterator[MLFrameworkManager]:
    """Register the model "m" of a server with workers."""
    settings = RegistrySettings(max_model_size=None, cache_dir=path.parent, ageing_ms=1000.0)
    devices = DeviceManager(FakeProbe())
    factories = registry_factories(settings, devices, TensorPool(MemorySettings()))
    loader = Loader(factories, devices, ProcessStarter(settings), num_workers)
    async with MLFrameworkManager(loader, PerformanceSettings(), SchedulingSettings(), HANGS_AFTER_S) as manager:
        manager.register("onnx", OnnxModelEntry(name="m", path=path, **entry), path)
        yield manager
    await soon(lambda: not process_registry.count())


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return save(add(), tmp_path / "adder.onnx")


async def reason_to_move(manager: MLFrameworkManager) -> str:
    """Load "m", which gets a process, and return the reason of the log."""
    with capture_logs() as logs:
        slot = await manager.load("m")
    assert slot.isolation == "process"
    assert process_registry.count() == 1
    [line] = [line for line in logs if line["event"] == MOVED]
    assert (line["model"], line["version"]) == ("m", "1")
    return str(line["reason"])


@in_loop
async def test_small_model_is_counted_for_each_worker(graph: Path) -> None:
    async with managed(graph) as manager, managed(graph, 0) as single:
        copies = await manager.load("m")
        assert copies.isolation == "none"
        assert copies.active.spec is not None
        assert copies.memory_bytes >= (1 + WORKERS) * copies.active.spec.memory_bytes
        loader, one = manager.residency._loader, single.residency._loader
        all_bytes = (await loader.needs(copies.active)).host_bytes
        assert all_bytes == (1 + WORKERS) * (await one.needs(single.slot("m").active)).host_bytes
        assert process_registry.count() == 0


@in_loop
async def test_model_above_small_bytes_gets_process(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_models, "SMALL_BYTES", 10)
    async with managed(graph) as manager:
        assert "a small model at most 10 B" in await reason_to_move(manager)
        await manager.unload("m")
        with capture_logs() as logs:
            await manager.load("m")
        assert MOVED not in [line["event"] for line in logs]


@in_loop
async def test_model_with_state_gets_process(tmp_path: Path) -> None:
    async with managed(save(running_sum(), tmp_path / "sum.onnx"), state="auto") as manager:
        assert await reason_to_move(manager) == "all steps of a sequence meet there"


@in_loop
async def test_model_with_long_runs_gets_process(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_models, "LIGHT_S", 0.0)
    async with managed(graph) as manager:
        assert (await reason_to_move(manager)).startswith("a run takes 0.")
        version = manager.slot("m").active
        # One process, and no copies beside it.
        assert manager.residency.ledger.budget.held_by(version) == version.memory_bytes


@in_loop
async def test_single_server_moves_no_model(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_models, "SMALL_BYTES", 10)
    async with managed(graph, 0) as manager:
        slot = await manager.load("m")
        assert slot.isolation == "none"
        assert process_registry.count() == 0


def test_frameworks_but_onnx_get_processes() -> None:
    assert small_models.reason_of_framework("onnx") is None
    assert small_models.reason_of_framework("pytorch") == "no pytorch model is small"
