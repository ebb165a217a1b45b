"""Which execution providers a session is given, on machines and builds of every kind."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.devices import Device, DeviceManager
from frameworks.onnx.providers import ProviderChoice, ProviderRules, choose_providers
from tests.frameworks.fake_probe import GIB, FakeProbe, cuda

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
MIGRAPHX = "MIGraphXExecutionProvider"
ROCM = "ROCMExecutionProvider"
ONE_CARD = (cuda(0, 9 * GIB),)


def choose(
    wanted: tuple[str, ...] | None,
    available: tuple[str, ...] = (CPU,),
    there: tuple[Device, ...] = (),
    weight_bytes: int = GIB,
    *,
    enable_gpu: bool = True,
    enable_tensorrt: bool = True,
) -> tuple[ProviderChoice, dict[str, str]]:
    """The choice, and why each provider that was skipped was skipped."""
    devices = DeviceManager(FakeProbe(list(there)), enable_gpu)
    with capture_logs() as logs:
        choice = choose_providers(
            "m", wanted, weight_bytes, devices, ProviderRules(available, enable_gpu, enable_tensorrt)
        )
    skipped = [entry for entry in logs if entry["event"] == "execution provider skipped"]
    assert all((entry["log_level"], entry["model"]) == ("warning", "m") for entry in skipped)
    return choice, {entry["provider"]: entry["reason"] for entry in skipped}


def names(choice: ProviderChoice) -> list[str]:
    return [name for name, _ in choice.session_providers]


def test_a_build_with_nothing_runs_on_the_cpu_without_a_word() -> None:
    choice, skipped = choose(None)
    assert (choice.session_providers, choice.cuda, skipped) == ([(CPU, {})], None, {})


def test_what_the_build_lacks_is_skipped_with_a_warning() -> None:
    choice, skipped = choose(("TensorRT", "CUDA", "CPU"))
    assert names(choice) == [CPU]
    assert skipped == dict.fromkeys(("TensorRT", "CUDA"), "not in this build of onnxruntime")


def test_cuda_is_taken_with_the_device_that_holds_the_model() -> None:
    choice, skipped = choose(None, (CUDA, CPU), (cuda(0, 2 * GIB), cuda(1, 9 * GIB)))
    assert choice.session_providers == [(CUDA, {"device_id": "1"}), (CPU, {})]
    assert choice.cuda is not None
    assert (choice.cuda.id, skipped) == ("cuda:1", {})


def test_tensorrt_and_cuda_stand_on_the_same_device() -> None:
    choice, _ = choose(None, (TENSORRT, CUDA, CPU), (cuda(0, 2 * GIB), cuda(1, 9 * GIB)))
    assert choice.session_providers == [(TENSORRT, {"device_id": "1"}), (CUDA, {"device_id": "1"}), (CPU, {})]


@pytest.mark.parametrize("wanted", [None, ("TensorRT", "CUDA")])
def test_tensorrt_must_be_switched_on(wanted: tuple[str, ...] | None) -> None:
    choice, skipped = choose(wanted, (TENSORRT, CUDA, CPU), ONE_CARD, enable_tensorrt=False)
    assert names(choice) == [CUDA, CPU]
    assert skipped == ({"TensorRT": "performance.enable_tensorrt is false"} if wanted else {})


def test_no_gpu_is_used_where_they_are_switched_off() -> None:
    available = (TENSORRT, CUDA, MIGRAPHX, "DmlExecutionProvider", "CoreMLExecutionProvider", CPU)
    choice, skipped = choose(("CUDA", "ROCm", "DirectML", "CoreML"), available, ONE_CARD, enable_gpu=False)
    assert (names(choice), choice.cuda) == ([CPU], None)
    assert set(skipped.values()) == {"performance.enable_gpu is false"}


@pytest.mark.parametrize("there", [(), (cuda(0, GIB),)], ids=["no card", "too small"])
def test_cuda_without_a_device_that_holds_it_is_skipped(there: tuple[Device, ...]) -> None:
    choice, skipped = choose(("CUDA",), (CUDA, CPU), there, weight_bytes=5 * GIB)
    assert (names(choice), skipped) == ([CPU], {"CUDA": "no CUDA device holds it"})


def test_too_small_a_card_is_told_once_with_the_figures() -> None:
    devices = DeviceManager(FakeProbe([cuda(0, GIB)]))
    with capture_logs() as logs:
        choose_providers("m", None, 5 * GIB, devices, ProviderRules((TENSORRT, CUDA, CPU), True, True))
    [warning] = logs
    assert (warning["needs"], warning["devices"]) == ("6 GiB", "cuda:0 has 1 GiB free")


@pytest.mark.parametrize(("available", "chosen"), [((MIGRAPHX, CPU), MIGRAPHX), ((ROCM, MIGRAPHX, CPU), ROCM)])
def test_rocm_is_migraphx_in_newer_builds(available: tuple[str, ...], chosen: str) -> None:
    choice, skipped = choose(("ROCm",), available)
    assert (choice.session_providers, skipped) == ([(chosen, {}), (CPU, {})], {})


def test_the_order_of_preference_is_the_entry_s_and_the_cpu_is_last() -> None:
    available = (CUDA, "OpenVINOExecutionProvider", MIGRAPHX, CPU)
    choice, _ = choose(("CPU", "OpenVINO", "CUDA"), available, ONE_CARD)
    assert names(choice) == ["OpenVINOExecutionProvider", CUDA, CPU]
    choice, _ = choose(None, available, ONE_CARD)
    assert names(choice) == [CUDA, MIGRAPHX, "OpenVINOExecutionProvider", CPU]


def test_the_cpu_alone_is_alone() -> None:
    choice, _ = choose(("CPU",), (CUDA, CPU), ONE_CARD)
    assert (names(choice), choice.cuda) == ([CPU], None)


def test_providers_that_we_do_not_know_are_left_alone() -> None:
    choice, _ = choose(None, ("AzureExecutionProvider", "QNNExecutionProvider", CPU))
    assert names(choice) == [CPU]


@pytest.mark.parametrize(
    ("active", "device"),
    [(CUDA, "cuda:1"), (TENSORRT, "cuda:1"), (MIGRAPHX, "rocm"), ("DmlExecutionProvider", "directml"),
     ("CoreMLExecutionProvider", "coreml"), ("OpenVINOExecutionProvider", "cpu"), (CPU, "cpu"), ("What", "cpu")],
)  # fmt: skip
def test_the_device_is_the_active_provider_s(active: str, device: str) -> None:
    options: Any = [(CUDA, {"device_id": "1"}), (CPU, {})]
    assert ProviderChoice(options, cuda(1, GIB)).device_of(active) == device
