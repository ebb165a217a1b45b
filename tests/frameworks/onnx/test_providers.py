"""The execution providers of a session on machines and builds of every kind."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.core.devices import Device
from frameworks.onnx.providers import ProviderChoice, ProviderRules, choose_providers, drives_cuda
from tests.support.fake_probe import GIB, cuda

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
MIGRAPHX = "MIGraphXExecutionProvider"
ROCM = "ROCMExecutionProvider"
CARD = cuda(1, 9 * GIB)
HOST = Device("cpu", 0, "Processor", 64 * GIB, 32 * GIB)


def choose(
    wanted: tuple[str, ...] | None,
    available: tuple[str, ...] = (CPU,),
    device: Device = HOST,
    *,
    enable_gpu: bool = True,
    enable_tensorrt: bool = True,
) -> tuple[ProviderChoice, dict[str, str]]:
    """Return the choice, and the reason of each skipped provider."""
    with capture_logs() as logs:
        choice = choose_providers("m", wanted, device, ProviderRules(available, enable_gpu, enable_tensorrt))
    skipped = [entry for entry in logs if entry["event"] == "execution provider skipped"]
    assert all((entry["log_level"], entry["model"]) == ("warning", "m") for entry in skipped)
    return choice, {entry["provider"]: entry["reason"] for entry in skipped}


def names(choice: ProviderChoice) -> list[str]:
    return [name for name, _ in choice.session_providers]


def test_cpu_build_uses_cpu_without_warning() -> None:
    choice, skipped = choose(None)
    assert (choice.session_providers, choice.cuda, skipped) == ([(CPU, {})], None, {})


def test_absent_provider_is_skipped_with_warning() -> None:
    choice, skipped = choose(("TensorRT", "CUDA", "CPU"))
    assert names(choice) == [CPU]
    assert skipped == dict.fromkeys(("TensorRT", "CUDA"), "not in this build of onnxruntime")


def test_cuda_uses_device_of_model() -> None:
    choice, skipped = choose(None, (CUDA, CPU), CARD)
    assert choice.session_providers == [(CUDA, {"device_id": "1"}), (CPU, {})]
    assert choice.cuda is not None
    assert (choice.cuda.id, skipped) == ("cuda:1", {})


def test_tensorrt_and_cuda_use_same_device() -> None:
    choice, _ = choose(None, (TENSORRT, CUDA, CPU), CARD)
    assert choice.session_providers == [(TENSORRT, {"device_id": "1"}), (CUDA, {"device_id": "1"}), (CPU, {})]


@pytest.mark.parametrize("wanted", [None, ("TensorRT", "CUDA")])
def test_tensorrt_needs_enable_tensorrt(wanted: tuple[str, ...] | None) -> None:
    choice, skipped = choose(wanted, (TENSORRT, CUDA, CPU), CARD, enable_tensorrt=False)
    assert names(choice) == [CUDA, CPU]
    assert skipped == ({"TensorRT": "performance.enable_tensorrt is false"} if wanted else {})


def test_disabled_gpu_is_not_chosen() -> None:
    available = (TENSORRT, CUDA, MIGRAPHX, "DmlExecutionProvider", "CoreMLExecutionProvider", CPU)
    choice, skipped = choose(("CUDA", "ROCm", "DirectML", "CoreML"), available, enable_gpu=False)
    assert (names(choice), choice.cuda) == ([CPU], None)
    assert set(skipped.values()) == {"performance.enable_gpu is false"}


def test_cuda_is_skipped_without_fitting_device() -> None:
    choice, skipped = choose(("CUDA",), (CUDA, CPU), HOST)
    assert (names(choice), skipped) == ([CPU], {"CUDA": "no CUDA device holds it"})
    assert choose(None, (CUDA, CPU), HOST)[1] == {}


@pytest.mark.parametrize(
    ("wanted", "available", "enable_gpu", "enable_tensorrt", "drives"),
    [
        (None, (CUDA, CPU), True, True, True),
        (None, (CPU,), True, True, False),
        (None, (CUDA, CPU), False, True, False),
        (None, (TENSORRT, CPU), True, False, False),
        (None, (TENSORRT, CPU), True, True, True),
        (("CPU",), (CUDA, CPU), True, True, False),
        (("TensorRT", "CUDA"), (TENSORRT, CUDA, CPU), True, False, True),
        (("TensorRT",), (TENSORRT, CUDA, CPU), True, False, False),
    ],
)
def test_device_needs_provider_that_supports_it(
    wanted: tuple[str, ...] | None,
    available: tuple[str, ...],
    enable_gpu: bool,
    enable_tensorrt: bool,
    drives: bool,
) -> None:
    assert drives_cuda(wanted, ProviderRules(available, enable_gpu, enable_tensorrt)) is drives


@pytest.mark.parametrize(("available", "chosen"), [((MIGRAPHX, CPU), MIGRAPHX), ((ROCM, MIGRAPHX, CPU), ROCM)])
def test_rocm_maps_to_migraphx_in_new_builds(available: tuple[str, ...], chosen: str) -> None:
    choice, skipped = choose(("ROCm",), available)
    assert (choice.session_providers, skipped) == ([(chosen, {}), (CPU, {})], {})


def test_order_is_that_of_entry_then_cpu() -> None:
    available = (CUDA, "OpenVINOExecutionProvider", MIGRAPHX, CPU)
    choice, _ = choose(("CPU", "OpenVINO", "CUDA"), available, CARD)
    assert names(choice) == ["OpenVINOExecutionProvider", CUDA, CPU]
    choice, _ = choose(None, available, CARD)
    assert names(choice) == [CUDA, MIGRAPHX, "OpenVINOExecutionProvider", CPU]


def test_cpu_alone_gives_cpu_only() -> None:
    choice, _ = choose(("CPU",), (CUDA, CPU))
    assert (names(choice), choice.cuda) == ([CPU], None)


def test_unknown_available_provider_is_ignored() -> None:
    choice, _ = choose(None, ("AzureExecutionProvider", "QNNExecutionProvider", CPU))
    assert names(choice) == [CPU]


@pytest.mark.parametrize(
    ("active", "device"),
    [(CUDA, "cuda:1"), (TENSORRT, "cuda:1"), (MIGRAPHX, "rocm"), ("DmlExecutionProvider", "directml"),
     ("CoreMLExecutionProvider", "coreml"), ("OpenVINOExecutionProvider", "cpu"), (CPU, "cpu"), ("What", "cpu")],
)  # fmt: skip
def test_device_is_that_of_active_provider(active: str, device: str) -> None:
    options: Any = [(CUDA, {"device_id": "1"}), (CPU, {})]
    assert ProviderChoice(options, cuda(1, GIB)).device_of(active) == device
