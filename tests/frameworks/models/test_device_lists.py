"""Test the memory of versions with processes on several devices: two simulated GPUs, evictions, measured bytes."""

import pytest
from structlog.testing import capture_logs

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import EvictionNeeded, InvalidModel, OutOfMemory
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.ledger import LoadOptions
from frameworks.models.residency.placement import choose_devices
from frameworks.models.versions.version import ModelVersion
from tests.frameworks.models.sized_registry import states
from tests.support.batch_models import FakeRegistry
from tests.support.fake_probe import GIB, FakeProbe, cuda
from tests.support.loops import in_loop, settle, task
from tests.support.managing import make_manager, register

TWO = [cuda(0, 50 * GIB), cuda(1, 50 * GIB)]


class OnOneGpu(FakeRegistry):
    """Models of 4 GiB on the GPU that their name ends with."""

    def needs(self, *arguments: object) -> ModelNeeds:
        name = arguments[0].name  # type: ignore[attr-defined]
        return ModelNeeds(4 * GIB, 4 * GIB, f"cuda:{name[-1]}", ("cuda",))


def manager_of(gpus: list[Device] = TWO, gib: int = 8) -> MLFrameworkManager:
    """Return a manager with `gib` GiB for models on each device."""
    return make_manager(OnOneGpu(size_bytes=4 * GIB), max_model_bytes=gib * GIB, probe=FakeProbe(gpus))


def needs(gib: int, wanted: str | tuple[str, ...] = ("cuda:0", "cuda:1")) -> ModelNeeds:
    return ModelNeeds(gib * GIB, gib * GIB, wanted, ("cuda",))


def version_of(manager: MLFrameworkManager, name: str = "m") -> ModelVersion:
    return register(manager, name).active


async def reserve(manager: MLFrameworkManager, version: ModelVersion, what: ModelNeeds) -> list[str]:
    """Return the device of each process."""
    return [device.id for device in await manager.residency.ledger.reserve(version, what, LoadOptions())]


def used(manager: MLFrameworkManager) -> dict[str, int]:
    """Return the reserved GiB by device."""
    budget = manager.residency.ledger.budget
    return {device: budget.used(device) // GIB for device in budget.devices}


@in_loop
async def test_each_device_of_list_is_reserved() -> None:
    async with manager_of() as manager:
        version = version_of(manager)
        assert await reserve(manager, version, needs(3)) == ["cuda:0", "cuda:1"]
        assert used(manager) == {"cuda:0": 3, "cuda:1": 3, "cpu": 0}
        manager.residency.ledger.release(version)
        assert used(manager) == {"cuda:0": 0, "cuda:1": 0, "cpu": 0}


@in_loop
async def test_repeated_device_is_reserved_for_each_process() -> None:
    async with manager_of() as manager:
        version = version_of(manager)
        assert await reserve(manager, version, needs(3, ("cpu", "cuda:1", "cpu"))) == ["cpu", "cuda:1", "cpu"]
        assert used(manager) == {"cuda:0": 0, "cuda:1": 3, "cpu": 6}
        with pytest.raises(OutOfMemory, match=r"needs 5 GiB for each of 2 processes; cpu has"):
            await reserve(manager, version_of(manager, "n"), needs(5, ("cpu", "cpu")))
        manager.residency.ledger.release(version)


@in_loop
async def test_all_cuda_devices_are_found() -> None:
    async with manager_of([cuda(number, 50 * GIB) for number in range(3)]) as manager:
        version = version_of(manager)
        assert await reserve(manager, version, needs(1, "cuda:*")) == ["cuda:0", "cuda:1", "cuda:2"]
        manager.residency.ledger.release(version)


@in_loop
async def test_missing_cuda_devices_are_named() -> None:
    async with manager_of([]) as manager:
        with pytest.raises(InvalidModel, match=r'device: expected a CUDA device for "cuda:\*", found none'):
            await reserve(manager, version_of(manager), needs(1, "cuda:*"))


@in_loop
async def test_absent_device_of_list_warns() -> None:
    async with manager_of(TWO[:1]) as manager:
        version = version_of(manager)
        with capture_logs() as logs:
            assert await reserve(manager, version, needs(6)) == ["cuda:0", "cpu"]
        assert [each["event"] for each in logs] == [
            "device is absent, taking the best there is",
            "model fits on no accelerator, taking the CPU",
        ]
        manager.residency.ledger.release(version)


@in_loop
async def test_models_are_evicted_on_each_device() -> None:
    async with manager_of() as manager:
        for name in ("a0", "b0", "a1"):
            register(manager, name)
            await manager.load(name)
        version = version_of(manager)
        assert await reserve(manager, version, needs(6)) == ["cuda:0", "cuda:1"]
        assert used(manager) == {"cuda:0": 6, "cuda:1": 6, "cpu": 0}
        assert manager.residency.ledger.evictions == {"a0": 1, "b0": 1, "a1": 1}
        manager.residency.ledger.release(version)


@in_loop
async def test_no_model_is_evicted_in_vain() -> None:
    async with manager_of() as manager:
        register(manager, "a0")
        register(manager, "a1", pinned=True)
        await manager.load("a0")
        await manager.load("a1")
        with pytest.raises(OutOfMemory, match=r"needs 6 GiB for each of 2 processes; cuda:1 has 4 GiB"):
            await reserve(manager, version_of(manager), needs(6))
        assert states(manager) == {"a0": "ready", "a1": "ready", "m": "registered"}
        with pytest.raises(EvictionNeeded, match=r"needs 6 GiB; cuda:0 has 4 GiB"):
            await manager.residency.ledger.reserve(
                version_of(manager, "n"), needs(6, ("cuda:0", "cuda:0")[:1]), LoadOptions(may_evict=False)
            )


@in_loop
async def test_measured_bytes_are_recorded_by_device() -> None:
    async with manager_of() as manager:
        register(manager, "a1")
        await manager.load("a1")
        version, ledger = version_of(manager), manager.residency.ledger
        devices = await ledger.reserve(version, needs(3), LoadOptions())
        version.measure([(devices[0], 2 * GIB), (devices[1], 5 * GIB)])
        assert not await ledger.record_measured(version, LoadOptions(may_evict=False))
        assert await ledger.record_measured(version, LoadOptions())
        assert used(manager) == {"cuda:0": 2, "cuda:1": 5, "cpu": 0}
        assert (version.memory_bytes, ledger.evictions) == (7 * GIB, {"a1": 1})
        ledger.release(version)
        # The next load reserves what the largest process took.
        await reserve(manager, version, needs(1))
        assert used(manager) == {"cuda:0": 5, "cuda:1": 5, "cpu": 0}
        ledger.release(version)


@in_loop
async def test_loads_on_shared_devices_take_turns() -> None:
    async with manager_of() as manager:
        first, second = version_of(manager), version_of(manager, "n")
        await reserve(manager, first, needs(5))
        waiting = task(reserve(manager, second, needs(5, ("cuda:1", "cuda:0"))))
        await settle()
        assert not waiting.done()
        manager.residency.ledger.release(first)
        assert await waiting == ["cuda:1", "cuda:0"]
        manager.residency.ledger.release(second)
        assert used(manager) == {"cuda:0": 0, "cuda:1": 0, "cpu": 0}


def test_processes_take_devices_beside_each_other() -> None:
    free = {"cuda:0": 9, "cuda:1": 6}
    chosen = choose_devices([TWO] * 4, ModelNeeds(3, 3), lambda each: free[each.id], lambda each: free[each.id])
    assert [device.id for device in chosen] == ["cuda:0", "cuda:0", "cuda:1", "cuda:0"]
    assert len(choose_devices([TWO] * 9, ModelNeeds(3, 3), lambda _: 6, lambda _: 6)) == 4
