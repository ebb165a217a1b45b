"""Which devices there are, and on which a model may be put, on machines of every kind."""

from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from frameworks.devices import Device, DeviceManager, ModelNeeds, SystemProbe, visible_positions
from tests.support.fake_probe import GIB, FakeProbe, cuda

MPS = Device("mps", 0, "Apple GPU", 16 * GIB, 8 * GIB)


def candidates(
    there: list[Device], wanted: str = "auto", usable: tuple[str, ...] = ("cuda", "mps")
) -> tuple[list[str], list[Any]]:
    """The ids of the devices that a model may be put on, and what was logged."""
    with capture_logs() as logs:
        devices = DeviceManager(FakeProbe(there)).candidates("m", ModelNeeds(GIB, GIB, wanted, usable))
    return [device.id for device in devices], logs


class TestAuto:
    def test_no_accelerator_gives_the_cpu_without_a_word(self) -> None:
        assert candidates([]) == (["cpu"], [])

    @pytest.mark.parametrize(
        ("free", "order"), [((4, 9), ["cuda:1", "cuda:0", "cpu"]), ((9, 4), ["cuda:0", "cuda:1", "cpu"])]
    )
    def test_the_one_with_more_free_memory_comes_first_and_the_cpu_last(
        self, free: tuple[int, int], order: list[str]
    ) -> None:
        assert candidates([cuda(i, size * GIB) for i, size in enumerate(free)]) == (order, [])

    def test_an_apple_gpu_is_an_accelerator_in_the_host_s_memory(self) -> None:
        assert candidates([MPS]) == (["mps", "cpu"], [])
        assert MPS.memory_id == "cpu"

    def test_what_a_framework_cannot_drive_is_not_there_for_it(self) -> None:
        assert candidates([MPS], usable=("cuda",)) == (["cpu"], [])
        assert candidates([cuda(0, 9 * GIB), MPS], usable=("mps",)) == (["mps", "cpu"], [])
        assert candidates([cuda(0, 9 * GIB), MPS], usable=()) == (["cpu"], [])


class TestNamed:
    two = (cuda(0, 9 * GIB), cuda(1, 4 * GIB))

    @pytest.mark.parametrize(
        ("wanted", "chosen"),
        [("cuda:1", ["cuda:1"]), ("cuda:0", ["cuda:0"]), ("cuda", ["cuda:0", "cuda:1"]), ("cpu", ["cpu"])],
    )
    def test_the_named_device_is_the_only_one(self, wanted: str, chosen: list[str]) -> None:
        assert candidates(list(self.two), wanted) == (chosen, [])

    @pytest.mark.parametrize("wanted", ["cuda:7", "mps"])
    def test_an_absent_one_gives_a_warning_and_the_choice_of_auto(self, wanted: str) -> None:
        devices, [warning] = candidates(list(self.two), wanted)
        assert devices == ["cuda:0", "cuda:1", "cpu"]
        assert (warning["log_level"], warning["model"], warning["wanted"]) == ("warning", "m", wanted)
        assert warning["there"] == ["cuda:0", "cuda:1"]

    def test_an_absent_one_without_any_other_gives_the_cpu(self) -> None:
        devices, [warning] = candidates([], "cuda")
        assert (devices, warning["there"]) == (["cpu"], ["cpu"])

    def test_one_that_the_framework_cannot_drive_is_absent(self) -> None:
        devices, [warning] = candidates([MPS], "mps", usable=("cuda",))
        assert (devices, warning["wanted"]) == (["cpu"], "mps")


def test_gpus_that_are_switched_off_are_not_seen() -> None:
    devices = DeviceManager(FakeProbe([cuda(0, 9 * GIB)]), enable_gpu=False)
    assert [device.id for device in devices.devices()] == ["cpu"]
    assert [device.id for device in devices.candidates("m", ModelNeeds(1, 1, usable=("cuda",)))] == ["cpu"]
    assert devices.memory_limits(None).keys() == {"cpu"}


def test_models_may_take_what_is_said_or_four_fifths_of_what_is_free() -> None:
    devices = DeviceManager(FakeProbe([cuda(0, 10 * GIB), MPS]))
    assert devices.memory_limits(3 * GIB) == {"cuda:0": 3 * GIB, "cpu": 3 * GIB}
    assert devices.memory_limits(None) == {"cuda:0": 8 * GIB, "cpu": int(32 * GIB * 0.8)}


def test_accelerators_are_listed_first() -> None:
    assert [d.id for d in DeviceManager(FakeProbe([cuda(0, 1), cuda(1, 2)])).devices()] == ["cuda:0", "cuda:1", "cpu"]


A, B, C = "GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"


@pytest.mark.parametrize(
    ("visible", "positions"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        (C, [2]),
        ("GPU-c", [2]),
        ("GPU-aab,GPU-aaa", [1, 0]),
        # Up to the first that does not exist.
        ("-1", []),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("GPU-zz", []),
        ("GPU-a", []),  # two begin so
        ("none", []),
        ("0,²,1", [0]),
        # An empty variable hides all; one that names a device twice does too, as the CUDA driver has it.
        ("", []),
        ("0,0", []),
        ("GPU-aab,GPU-aabb-2", []),
    ],
)
def test_cuda_s_numbers_are_found_among_all_devices(visible: str | None, positions: list[int]) -> None:
    assert visible_positions([A, B, C], visible) == positions


def test_this_machine_is_measured() -> None:
    probe = SystemProbe()
    host = probe.host()
    assert host.id == "cpu"
    assert host.name
    assert 0 < host.free_bytes <= host.total_bytes <= psutil.virtual_memory().total
    for device in probe.accelerators():
        assert device.kind in ("cuda", "mps")
        assert 0 <= device.free_bytes <= device.total_bytes


@pytest.mark.gpu
def test_nvml_and_torch_agree_on_the_devices() -> None:
    found = [device for device in SystemProbe().accelerators() if device.kind == "cuda"]
    if not found:
        pytest.skip("no CUDA device")
    import torch

    assert len(found) == torch.cuda.device_count()
    for device in found:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device.index)
        assert device.total_bytes == pytest.approx(total_bytes, rel=0.05)
        assert device.free_bytes == pytest.approx(free_bytes, rel=0.1)
