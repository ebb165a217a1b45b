"""Where a model goes: the policy alone, and what the room makes of it."""

import pytest
from structlog.testing import capture_logs

from frameworks.devices import Device, ModelNeeds
from frameworks.errors import OutOfMemory
from frameworks.models.placement import Place, place
from frameworks.models.slot import ModelState
from tests.support.batch_models import FakeRegistry
from tests.support.fake_probe import GIB, FakeProbe, cuda
from tests.support.loops import in_loop
from tests.support.managing import ask, make_manager, register

HOST = Device("cpu", 0, "Processor", 64 * GIB, 32 * GIB)
TWO = [cuda(0, 0), cuda(1, 0), HOST]


def placed(free: dict[str, int], at_most: dict[str, int], needs: int, among: list[Device] = TWO) -> tuple[str, int]:
    """The device that is chosen and what must leave there. `free`, `at_most`: bytes there, now and if all left."""
    chosen = place(among, ModelNeeds(needs, needs), lambda device: free[device.id], lambda device: at_most[device.id])
    assert chosen is not None
    return chosen.device.id, chosen.must_leave


class TestPolicy:
    def test_the_accelerator_with_most_room_is_taken(self) -> None:
        empty = {"cuda:0": 4, "cuda:1": 9, "cpu": 50}
        assert placed(empty, empty, 4) == ("cuda:1", 0)
        assert placed(empty, empty, 9) == ("cuda:1", 0)

    def test_one_that_holds_it_as_things_are_goes_before_one_where_others_must_leave(self) -> None:
        assert placed({"cuda:0": 3, "cuda:1": 5, "cpu": 9}, {"cuda:0": 9, "cuda:1": 5, "cpu": 9}, 4) == ("cuda:1", 0)

    def test_where_others_must_leave_it_is_where_least_has_to(self) -> None:
        assert placed({"cuda:0": 3, "cuda:1": 2, "cpu": 9}, {"cuda:0": 9, "cuda:1": 9, "cpu": 9}, 5) == ("cuda:0", 2)

    def test_one_that_never_holds_it_is_passed_over_for_one_where_more_must_leave(self) -> None:
        assert placed({"cuda:0": 4, "cuda:1": 1, "cpu": 9}, {"cuda:0": 4, "cuda:1": 9, "cpu": 9}, 5) == ("cuda:1", 4)

    def test_the_cpu_is_taken_only_where_no_accelerator_can_ever_hold_it(self) -> None:
        assert placed({"cuda:0": 0, "cuda:1": 0, "cpu": 9}, {"cuda:0": 4, "cuda:1": 5, "cpu": 9}, 5) == ("cuda:1", 5)
        assert placed({"cuda:0": 0, "cuda:1": 0, "cpu": 9}, {"cuda:0": 4, "cuda:1": 4, "cpu": 9}, 5) == ("cpu", 0)
        assert placed({"cuda:0": 0, "cuda:1": 0, "cpu": 3}, {"cuda:0": 4, "cuda:1": 4, "cpu": 9}, 5) == ("cpu", 2)

    def test_what_fits_nowhere_has_no_place(self) -> None:
        assert place(TWO, ModelNeeds(5, 5), lambda _: 4, lambda _: 4) is None
        assert place([cuda(0, 0)], ModelNeeds(1, 5), lambda _: 4, lambda _: 4) is None

    def test_each_kind_of_device_is_asked_for_what_the_model_takes_there(self) -> None:
        needs = ModelNeeds(host_bytes=8, accelerator_bytes=4)
        assert place(TWO, needs, lambda _: 4, lambda _: 4) == Place(TWO[0], 0)
        assert place([HOST], needs, lambda _: 8, lambda _: 8) == Place(HOST, 0)
        assert place([HOST], needs, lambda _: 7, lambda _: 7) is None


class OnAccelerators(FakeRegistry):
    """Its models want a device of CUDA, this one if it is named."""

    wanted = "auto"

    def needs(self, *_: object) -> ModelNeeds:
        return ModelNeeds(self.size_bytes, self.size_bytes, self.wanted, ("cuda",))


class TestRoom:
    """Devices are measured, and what the ledger says is counted too."""

    @in_loop
    async def test_models_are_spread_over_the_accelerators_and_the_cpu(self) -> None:
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
    async def test_a_device_that_is_full_of_others_memory_has_no_room(self) -> None:
        """What other processes hold there is in no ledger of ours."""
        registry = OnAccelerators(size_bytes=4 * GIB)
        async with make_manager(registry, max_model_bytes=8 * GIB, probe=FakeProbe([cuda(0, 3 * GIB)])) as manager:
            register(manager)
            with capture_logs():
                await manager.load("m")
            assert manager.residency.ledger.budget.used("cpu") == 4 * GIB

    @in_loop
    async def test_a_named_device_that_is_too_small_is_refused_with_the_figures(self) -> None:
        registry = OnAccelerators(size_bytes=4 * GIB)
        registry.wanted = "cuda:1"
        async with make_manager(
            registry, max_model_bytes=8 * GIB, probe=FakeProbe([cuda(0, 50 * GIB), cuda(1, 3 * GIB)])
        ) as manager:
            slot = register(manager)
            with pytest.raises(
                OutOfMemory, match=r"needs 4 GiB .*cuda:1 has 8 GiB of 8 GiB left .* 3 GiB free"
            ) as caught:
                await manager.load("m")
            assert "cuda:0" not in caught.value.message
            assert slot.state is ModelState.FAILED
            with pytest.raises(OutOfMemory, match="needs 4 GiB"):
                await ask(manager)
            manager.residency.ledger.check_integrity()
