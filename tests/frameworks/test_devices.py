"""Where a model is put, on machines of every kind."""

from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from frameworks.devices import Device, DeviceManager, SystemProbe, visible_positions
from frameworks.errors import OutOfMemory
from tests.frameworks.fake_probe import GIB, FakeProbe, cuda

MPS = Device("mps", 0, "Apple GPU", 16 * GIB, 8 * GIB)


def place(there: list[Device], weight_bytes: int, *arguments: Any, **options: Any) -> tuple[str, list[Any]]:
    """The chosen device's id, and what was logged."""
    with capture_logs() as logs:
        device = DeviceManager(FakeProbe(there)).place("m", weight_bytes, *arguments, **options)
    return device.id, logs


class TestAuto:
    def test_no_accelerator_gives_the_cpu_without_a_word(self) -> None:
        assert place([], GIB) == ("cpu", [])

    def test_one_cuda_device_is_taken(self) -> None:
        assert place([cuda(0, 10 * GIB)], GIB) == ("cuda:0", [])

    @pytest.mark.parametrize(("free", "chosen"), [((4, 9), "cuda:1"), ((9, 4), "cuda:0")])
    def test_of_two_the_one_with_more_free_memory_is_taken(self, free: tuple[int, int], chosen: str) -> None:
        assert place([cuda(i, size * GIB) for i, size in enumerate(free)], GIB) == (chosen, [])

    def test_mps_is_taken(self) -> None:
        assert place([MPS], GIB) == ("mps", [])

    def test_weights_and_a_fifth_must_fit(self) -> None:
        assert place([cuda(0, 12 * GIB)], 10 * GIB)[0] == "cuda:0"
        assert place([cuda(0, 12 * GIB - 1)], 10 * GIB)[0] == "cpu"

    def test_too_small_falls_to_the_cpu_with_the_figures(self) -> None:
        device, logs = place([cuda(0, 2 * GIB), cuda(1, GIB)], 5 * GIB)
        assert device == "cpu"
        [warning] = logs
        assert warning["log_level"] == "warning"
        assert warning["model"] == "m"
        assert warning["needs"] == "6 GiB"
        assert warning["devices"] == "cuda:0 has 2 GiB free, cuda:1 has 1 GiB free"

    def test_what_a_framework_cannot_drive_is_not_there_for_it(self) -> None:
        assert place([MPS], GIB, usable=("cuda",)) == ("cpu", [])
        assert place([cuda(0, 9 * GIB), MPS], GIB, usable=("mps",)) == ("mps", [])
        assert place([cuda(0, 9 * GIB), MPS], GIB, usable=()) == ("cpu", [])


class TestNamed:
    two = (cuda(0, 9 * GIB), cuda(1, 4 * GIB))

    @pytest.mark.parametrize(
        ("wanted", "chosen"), [("cuda:1", "cuda:1"), ("cuda:0", "cuda:0"), ("cuda", "cuda:0"), ("cpu", "cpu")]
    )
    def test_the_named_device_is_taken(self, wanted: str, chosen: str) -> None:
        assert place(list(self.two), GIB, wanted) == (chosen, [])

    @pytest.mark.parametrize(("wanted", "chosen"), [("cuda:7", "cuda:0"), ("mps", "cuda:0")])
    def test_an_absent_one_gives_a_warning_and_the_best_there_is(self, wanted: str, chosen: str) -> None:
        device, [warning] = place(list(self.two), GIB, wanted)
        assert device == chosen
        assert (warning["log_level"], warning["wanted"]) == ("warning", wanted)
        assert warning["there"] == ["cuda:0", "cuda:1"]

    def test_an_absent_one_without_any_other_gives_the_cpu(self) -> None:
        device, [warning] = place([], GIB, "cuda")
        assert (device, warning["there"]) == ("cpu", ["cpu"])

    def test_a_named_one_that_is_too_small_is_refused_with_the_figures(self) -> None:
        with pytest.raises(OutOfMemory, match=r'"m" needs 6 GiB on device "cuda:1".*cuda:1 has 4 GiB free') as caught:
            place(list(self.two), 5 * GIB, "cuda:1")
        assert "cuda:0" not in caught.value.message

    def test_a_kind_is_any_of_its_devices(self) -> None:
        assert place([cuda(0, GIB), cuda(1, 9 * GIB)], 5 * GIB, "cuda") == ("cuda:1", [])

    def test_one_that_the_framework_cannot_drive_is_absent(self) -> None:
        device, [warning] = place([MPS], GIB, "mps", usable=("cuda",))
        assert (device, warning["wanted"]) == ("cpu", "mps")


def test_gpus_that_are_switched_off_are_not_seen() -> None:
    devices = DeviceManager(FakeProbe([cuda(0, 9 * GIB)]), enable_gpu=False)
    assert [device.id for device in devices.devices()] == ["cpu"]
    assert devices.place("m", GIB).id == "cpu"


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
