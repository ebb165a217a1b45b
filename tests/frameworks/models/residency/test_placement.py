"""Test the placement policy alone, and the placements that the ledger makes with it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import OutOfMemory
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.models.residency.placement import (
    choose_device,
    choose_victim,
    is_evictable,
    is_pinned,
    with_grants,
)
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.runtime import BatchModel, ModelEntry
from tests.support.batch_models import FakeRegistry
from tests.support.fake_probe import GIB, FakeProbe, cuda
from tests.support.loops import in_loop
from tests.support.managing import ask, entry, make_manager, register

HOST = Device("cpu", 0, "Processor", 64 * GIB, 32 * GIB)
TWO = [cuda(0, 0), cuda(1, 0), HOST]


def chosen(free: dict[str, int], evictable: dict[str, int], needs: int, among: list[Device] = TWO) -> tuple[str, int]:
    """Return the chosen device and its missing bytes. `free`, `evictable`: bytes by device."""
    device = choose_device(
        among, ModelNeeds(needs, needs), lambda device: free[device.id], lambda device: evictable[device.id]
    )
    assert device is not None
    return device.id, max(0, needs - free[device.id])


class TestChooseDevice:
    def test_accelerator_with_most_free_memory_is_chosen(self) -> None:
        empty = {"cuda:0": 4, "cuda:1": 9, "cpu": 50}
        assert chosen(empty, empty, 4) == ("cuda:1", 0)
        assert chosen(empty, empty, 9) == ("cuda:1", 0)

    def test_device_without_evictions_is_preferred(self) -> None:
        assert chosen({"cuda:0": 3, "cuda:1": 5, "cpu": 9}, {"cuda:0": 9, "cuda:1": 5, "cpu": 9}, 4) == ("cuda:1", 0)

    def test_device_with_fewest_evicted_bytes_is_chosen(self) -> None:
        assert chosen({"cuda:0": 3, "cuda:1": 2, "cpu": 9}, {"cuda:0": 9, "cuda:1": 9, "cpu": 9}, 5) == ("cuda:0", 2)

    def test_device_that_is_too_small_is_skipped(self) -> None:
        assert chosen({"cuda:0": 4, "cuda:1": 1, "cpu": 9}, {"cuda:0": 4, "cuda:1": 9, "cpu": 9}, 5) == ("cuda:1", 4)

    def test_cpu_is_chosen_when_no_accelerator_fits(self) -> None:
        assert chosen({"cuda:0": 0, "cuda:1": 0, "cpu": 9}, {"cuda:0": 4, "cuda:1": 5, "cpu": 9}, 5) == ("cuda:1", 5)
        assert chosen({"cuda:0": 0, "cuda:1": 0, "cpu": 9}, {"cuda:0": 4, "cuda:1": 4, "cpu": 9}, 5) == ("cpu", 0)
        assert chosen({"cuda:0": 0, "cuda:1": 0, "cpu": 3}, {"cuda:0": 4, "cuda:1": 4, "cpu": 9}, 5) == ("cpu", 2)

    def test_model_that_fits_nowhere_has_no_device(self) -> None:
        assert choose_device(TWO, ModelNeeds(5, 5), lambda _: 4, lambda _: 4) is None
        assert choose_device([cuda(0, 0)], ModelNeeds(1, 5), lambda _: 4, lambda _: 4) is None

    def test_needs_depend_on_kind_of_device(self) -> None:
        needs = ModelNeeds(host_bytes=8, accelerator_bytes=4)
        assert choose_device(TWO, needs, lambda _: 4, lambda _: 4) == TWO[0]
        assert choose_device([HOST], needs, lambda _: 8, lambda _: 8) == HOST
        assert choose_device([HOST], needs, lambda _: 7, lambda _: 7) is None


@dataclass(eq=False)
class Identity:
    """The fields of a ModelIdentity that the policy reads."""

    entry: OnnxModelEntry


@dataclass(eq=False)
class Version:
    """The fields of a loaded ModelVersion that the policy reads."""

    ready_since_s: float = 0.0
    last_used_s: float | None = None
    load_s: float = 0.0
    is_in_use: bool = False
    is_ready: bool = True
    has_died: bool = False
    load_task: object = None
    model: Identity = field(default_factory=lambda: Identity(entry()))


def pinned() -> Identity:
    return Identity(entry(pinned=True))


def victim(
    *versions: Version, now_s: float = 100.0, min_residency_s: float = 0.0, is_urgent: bool = False
) -> tuple[Version, float] | None:
    chosen = choose_victim(cast("tuple[ModelVersion, ...]", versions), now_s, min_residency_s, is_urgent)
    return None if chosen is None else (cast("Version", chosen.version), chosen.wait_s)


class TestGrants:
    NEEDS = ModelNeeds(host_bytes=8, accelerator_bytes=4)

    def grants(self, devices: list[Device], left: int) -> list[int | None]:
        return [device.grant_bytes for device in with_grants(devices, self.NEEDS, lambda _: left)]

    def test_grant_is_need_and_what_is_left(self) -> None:
        assert self.grants([cuda(0, 50)], 10) == [14]

    def test_grant_never_exceeds_free_memory(self) -> None:
        assert self.grants([cuda(0, 9)], 10) == [9]
        assert self.grants([cuda(0, 4)], 10) == [4]

    def test_grant_is_at_least_the_need(self) -> None:
        assert self.grants([cuda(0, 3)], 10) == [4]
        assert self.grants([cuda(0, 50)], -1) == [4]

    def test_processes_of_a_device_share_it(self) -> None:
        assert self.grants([cuda(0, 50), cuda(0, 50), cuda(1, 50)], 10) == [9, 9, 14]

    def test_device_stays_equal(self) -> None:
        assert with_grants(TWO, self.NEEDS, lambda _: 1) == TWO


class TestChooseVictim:
    def test_least_recently_used_version_is_evicted_at_once(self) -> None:
        older, newer = Version(last_used_s=5.0), Version(last_used_s=9.0)
        assert victim(newer, older) == (older, 0.0)

    def test_unused_version_is_ranked_by_load_time(self) -> None:
        used, fresh = Version(ready_since_s=1.0, last_used_s=20.0), Version(ready_since_s=30.0)
        assert victim(used, fresh) == (used, 0.0)
        # It was loaded again long after its last use.
        reloaded = Version(ready_since_s=40.0, last_used_s=2.0)
        assert victim(fresh, reloaded) == (fresh, 0.0)

    def test_idle_version_is_evicted_before_busy_one(self) -> None:
        idle, busy = Version(last_used_s=50.0), Version(last_used_s=1.0, is_in_use=True)
        assert victim(busy, idle) == (idle, 0.0)

    def test_oldest_busy_version_stays_for_its_load(self) -> None:
        long, short = Version(90.0, load_s=15.0, is_in_use=True), Version(95.0, load_s=1.0, is_in_use=True)
        assert victim(short, long, now_s=100.0) == (long, 5.0)
        assert victim(short, long, now_s=105.0) == (long, 0.0)
        assert victim(short, long, now_s=200.0) == (long, 0.0)

    def test_idle_version_stays_for_its_load(self) -> None:
        first, second = Version(90.0, load_s=15.0), Version(95.0, load_s=1.0)
        assert victim(first, second, now_s=100.0) == (first, 5.0)
        assert victim(first, second, now_s=105.0) == (first, 0.0)
        assert victim(first, second, now_s=100.0, is_urgent=True) == (first, 0.0)

    def test_minimum_residency_holds_for_requests(self) -> None:
        idle, busy = Version(90.0, load_s=1.0), Version(90.0, load_s=12.0, is_in_use=True)
        assert victim(idle, now_s=100.0, min_residency_s=30.0) == (idle, 20.0)
        assert victim(busy, now_s=100.0, min_residency_s=30.0) == (busy, 20.0)
        assert victim(busy, now_s=100.0, min_residency_s=30.0, is_urgent=True) == (busy, 2.0)
        dead = Version(is_ready=False, has_died=True)
        assert victim(idle, dead, now_s=100.0, min_residency_s=30.0) == (dead, 0.0)

    def test_dead_version_is_evicted_first(self) -> None:
        dead = Version(last_used_s=99.0, is_ready=False, has_died=True, is_in_use=True)
        assert victim(Version(last_used_s=1.0), dead) == (dead, 0.0)

    def test_pinned_version_is_evicted_only_when_dead(self) -> None:
        staying = Version(model=pinned())
        assert victim(staying) is None
        assert is_pinned(cast("ModelVersion", staying))
        dead = Version(model=pinned(), is_ready=False, has_died=True)
        assert victim(staying, dead) == (dead, 0.0)
        assert not is_pinned(cast("ModelVersion", dead))

    def test_version_in_transition_is_not_evicted(self) -> None:
        loading = Version(is_ready=False)
        assert victim(loading) is None
        assert not is_evictable(cast("ModelVersion", loading))
        assert not is_pinned(cast("ModelVersion", loading))
        # It is dead, and its reload unloads it.
        assert victim(Version(is_ready=False, has_died=True, load_task=object())) is None


class OnAccelerators(FakeRegistry):
    """Its models need a CUDA device; `wanted` may name one."""

    wanted = "auto"

    def needs(self, *_: object) -> ModelNeeds:
        return ModelNeeds(self.size_bytes, self.size_bytes, self.wanted, ("cuda",))


class TestLedgerPlacement:
    """The ledger counts both measured free bytes and reserved bytes."""

    @in_loop
    async def test_models_are_spread_over_accelerators_and_cpu(self) -> None:
        registry = OnAccelerators(size_bytes=4 * GIB)
        async with make_manager(
            registry, max_model_bytes=8 * GIB, probe=FakeProbe([cuda(0, 50 * GIB), cuda(1, 60 * GIB)])
        ) as manager:
            budget = manager.residency.ledger.budget
            for name in "abcd":
                register(manager, name, pinned=True)
                await manager.load(name)
            assert {device: budget.used(device) for device in budget.devices} == {
                "cuda:0": 8 * GIB,
                "cuda:1": 8 * GIB,
                "cpu": 0,
            }
            register(manager, "e")
            with capture_logs() as logs:
                await manager.load("e")
            assert budget.used("cpu") == 4 * GIB
            [warning] = [each for each in logs if each["log_level"] == "warning"]
            assert (warning["event"], warning["model"]) == ("model fits on no accelerator, taking the CPU", "e")
            assert warning["needs"] == "4 GiB"
            assert "cuda:0 has 0 B of 8 GiB left for models and 50 GiB free" in warning["devices"]
            assert "cpu" not in warning["devices"]

    @in_loop
    async def test_load_gets_grant_of_ledger(self) -> None:
        grants = []

        class Granted(OnAccelerators):
            def load(self, entry: ModelEntry, path: Path, device: Device) -> list[BatchModel]:
                grants.append((device.id, device.grant_bytes))
                return super().load(entry, path, device)

        registry = Granted(size_bytes=3 * GIB)
        async with make_manager(registry, max_model_bytes=8 * GIB, probe=FakeProbe([cuda(0, 50 * GIB)])) as manager:
            for name in "ab":
                register(manager, name)
                await manager.load(name)
        assert grants == [("cuda:0", 8 * GIB), ("cuda:0", 5 * GIB)]

    @in_loop
    async def test_device_filled_by_other_processes_is_skipped(self) -> None:
        registry = OnAccelerators(size_bytes=4 * GIB)
        async with make_manager(registry, max_model_bytes=8 * GIB, probe=FakeProbe([cuda(0, 3 * GIB)])) as manager:
            register(manager)
            with capture_logs():
                await manager.load("m")
            assert manager.residency.ledger.budget.used("cpu") == 4 * GIB

    @in_loop
    async def test_small_named_device_is_refused_with_free_bytes(self) -> None:
        registry = OnAccelerators(size_bytes=4 * GIB)
        registry.wanted = "cuda:1"
        async with make_manager(
            registry, max_model_bytes=8 * GIB, probe=FakeProbe([cuda(0, 50 * GIB), cuda(1, 3 * GIB)])
        ) as manager:
            slot = register(manager)
            with pytest.raises(
                OutOfMemory, match=r"needs 4 GiB; .*cuda:1 has 8 GiB of 8 GiB left .* 3 GiB free"
            ) as caught:
                await manager.load("m")
            assert "cuda:0" not in caught.value.message
            assert slot.state is ModelState.FAILED
            with pytest.raises(OutOfMemory, match="needs 4 GiB"):
                await ask(manager)
            manager.residency.ledger.check_integrity()
