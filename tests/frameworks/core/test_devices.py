"""Test which devices are found and which are candidates for a model, on simulated machines."""

import ctypes
import sys
from typing import Any, NoReturn

import psutil
import pytest
from structlog.testing import capture_logs

from frameworks.core.devices import Device, DeviceManager, ModelNeeds, SystemProbe, visible_positions
from tests.support.engine_processes import LINUX
from tests.support.fake_probe import GIB, FakeProbe, cuda

MPS = Device("mps", 0, "Apple GPU", 16 * GIB, 8 * GIB)


def candidates(
    there: list[Device], wanted: str = "auto", usable: tuple[str, ...] = ("cuda", "mps")
) -> tuple[list[str], list[Any]]:
    """Return the ids of the candidate devices, and the log entries."""
    with capture_logs() as logs:
        devices = DeviceManager(FakeProbe(there)).candidates("m", ModelNeeds(GIB, GIB, wanted, usable))
    return [device.id for device in devices], logs


@LINUX
def test_missing_nvml_imports_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> NoReturn:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    # An import of it would raise ModuleNotFoundError.
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert [device.kind for device in SystemProbe().accelerators()] == []


class TestAuto:
    def test_cpu_is_candidate_without_accelerator(self) -> None:
        assert candidates([]) == (["cpu"], [])

    @pytest.mark.parametrize(
        ("free", "order"), [((4, 9), ["cuda:1", "cuda:0", "cpu"]), ((9, 4), ["cuda:0", "cuda:1", "cpu"])]
    )
    def test_candidates_are_sorted_by_free_memory(self, free: tuple[int, int], order: list[str]) -> None:
        assert candidates([cuda(i, size * GIB) for i, size in enumerate(free)]) == (order, [])

    def test_apple_gpu_uses_host_memory(self) -> None:
        assert candidates([MPS]) == (["mps", "cpu"], [])
        assert MPS.memory_id == "cpu"

    def test_unusable_accelerators_are_no_candidates(self) -> None:
        assert candidates([MPS], usable=("cuda",)) == (["cpu"], [])
        assert candidates([cuda(0, 9 * GIB), MPS], usable=("mps",)) == (["mps", "cpu"], [])
        assert candidates([cuda(0, 9 * GIB), MPS], usable=()) == (["cpu"], [])


class TestNamed:
    two = (cuda(0, 9 * GIB), cuda(1, 4 * GIB))

    @pytest.mark.parametrize(
        ("wanted", "chosen"),
        [("cuda:1", ["cuda:1"]), ("cuda:0", ["cuda:0"]), ("cuda", ["cuda:0", "cuda:1"]), ("cpu", ["cpu"])],
    )
    def test_named_device_is_only_candidate(self, wanted: str, chosen: list[str]) -> None:
        assert candidates(list(self.two), wanted) == (chosen, [])

    @pytest.mark.parametrize("wanted", ["cuda:7", "mps"])
    def test_absent_named_device_warns_and_acts_as_auto(self, wanted: str) -> None:
        devices, [warning] = candidates(list(self.two), wanted)
        assert devices == ["cuda:0", "cuda:1", "cpu"]
        assert (warning["log_level"], warning["model"], warning["wanted"]) == ("warning", "m", wanted)
        assert warning["there"] == ["cuda:0", "cuda:1"]

    def test_absent_named_device_falls_back_to_cpu(self) -> None:
        devices, [warning] = candidates([], "cuda")
        assert (devices, warning["there"]) == (["cpu"], ["cpu"])

    def test_unusable_named_device_counts_as_absent(self) -> None:
        devices, [warning] = candidates([MPS], "mps", usable=("cuda",))
        assert (devices, warning["wanted"]) == (["cpu"], "mps")


def test_disabled_gpus_are_not_listed() -> None:
    devices = DeviceManager(FakeProbe([cuda(0, 9 * GIB)]), enable_gpu=False)
    assert [device.id for device in devices.devices()] == ["cpu"]
    assert [device.id for device in devices.candidates("m", ModelNeeds(1, 1, usable=("cuda",)))] == ["cpu"]
    assert devices.memory_limits(None).keys() == {"cpu"}


def test_memory_limit_is_setting_or_share_of_free() -> None:
    devices = DeviceManager(FakeProbe([cuda(0, 10 * GIB), MPS]))
    assert devices.memory_limits(3 * GIB) == {"cuda:0": 3 * GIB, "cpu": 3 * GIB}
    assert devices.memory_limits(None) == {"cuda:0": 8 * GIB, "cpu": int(32 * GIB * 0.8)}


def test_devices_list_accelerators_first() -> None:
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
        # The list ends before the first unknown device.
        ("-1", []),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("GPU-zz", []),
        ("GPU-a", []),  # a prefix of two devices
        ("none", []),
        ("0,²,1", [0]),
        # An empty variable hides all devices, and so does a repeated device, as in the CUDA driver.
        ("", []),
        ("0,0", []),
        ("GPU-aab,GPU-aabb-2", []),
    ],
)
def test_cuda_numbers_map_to_nvml_positions(visible: str | None, positions: list[int]) -> None:
    assert visible_positions([A, B, C], visible) == positions


def test_system_probe_measures_this_machine() -> None:
    probe = SystemProbe()
    host = probe.host()
    assert host.id == "cpu"
    assert host.name
    assert 0 < host.free_bytes <= host.total_bytes <= psutil.virtual_memory().total
    for device in probe.accelerators():
        assert device.kind in ("cuda", "mps")
        assert 0 <= device.free_bytes <= device.total_bytes


@pytest.mark.gpu
def test_nvml_and_torch_find_same_devices() -> None:
    found = [device for device in SystemProbe().accelerators() if device.kind == "cuda"]
    if not found:
        pytest.skip("no CUDA device")
    import torch

    assert len(found) == torch.cuda.device_count()
    for device in found:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device.index)
        assert device.total_bytes == pytest.approx(total_bytes, rel=0.05)
        assert device.free_bytes == pytest.approx(free_bytes, rel=0.1)
