"""Which execution providers a session is given: the wanted ones that are there, the CPU always last."""

from dataclasses import dataclass

import structlog

from frameworks.devices import Device, DeviceManager

log = structlog.get_logger(__name__)

# config.toml's name → ONNX Runtime's, in our order of preference. ROCm lives on as MIGraphX in newer builds.
PROVIDERS: dict[str, tuple[str, ...]] = {
    "TensorRT": ("TensorrtExecutionProvider",),
    "CUDA": ("CUDAExecutionProvider",),
    "ROCm": ("ROCMExecutionProvider", "MIGraphXExecutionProvider"),
    "CoreML": ("CoreMLExecutionProvider",),
    "DirectML": ("DmlExecutionProvider",),
    "OpenVINO": ("OpenVINOExecutionProvider",),
    "CPU": ("CPUExecutionProvider",),
}
_ON_CUDA = ("TensorRT", "CUDA")
_ON_GPU = (*_ON_CUDA, "ROCm", "CoreML", "DirectML")
_DEVICE_OF = {"TensorRT": "cuda", "CUDA": "cuda", "ROCm": "rocm", "CoreML": "coreml", "DirectML": "directml"}


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """What there is to choose from: ONNX Runtime's providers in this build, and what `[performance]` allows."""

    available: tuple[str, ...]
    enable_gpu: bool
    enable_tensorrt: bool


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """`session_providers` as InferenceSession takes them: (name, options), first is preferred."""

    session_providers: list[tuple[str, dict[str, str]]]
    cuda: Device | None

    def device_of(self, active: str) -> str:
        """The device that a session whose first active provider is `active` computes on, as /models shows it."""
        name = next((name for name, theirs in PROVIDERS.items() if active in theirs), "CPU")
        kind = _DEVICE_OF.get(name, "cpu")
        return self.cuda.id if kind == "cuda" and self.cuda else kind


def choose_providers(
    model: str,
    wanted: tuple[str, ...] | None,
    weight_bytes: int,
    devices: DeviceManager,
    rules: ProviderRules,
) -> ProviderChoice:
    """The providers for one model. `wanted` None means all that are installed, in our order of preference.

    What a config names and this machine or build lacks is skipped with a warning. Raises OutOfMemory as
    `DeviceManager.place` does.
    """
    chosen: list[tuple[str, dict[str, str]]] = []
    cuda: Device | None = None
    is_placed = False
    for name in wanted or tuple(PROVIDERS):
        theirs = next((provider for provider in PROVIDERS[name] if provider in rules.available), None)
        reason = None
        if theirs is None:
            reason = "not in this build of onnxruntime"
        elif name in _ON_GPU and not rules.enable_gpu:
            reason = "performance.enable_gpu is false"
        elif name == "TensorRT" and not rules.enable_tensorrt:
            reason = "performance.enable_tensorrt is false"
        elif name in _ON_CUDA:
            if not is_placed:
                cuda, is_placed = _place_on_cuda(model, weight_bytes, devices), True
            reason = None if cuda else "no CUDA device holds it"
        if reason is not None:
            if wanted:
                log.warning("execution provider skipped", model=model, provider=name, reason=reason)
        elif theirs is not None and name != "CPU":
            chosen.append((theirs, {"device_id": str(cuda.index)} if name in _ON_CUDA and cuda else {}))
    return ProviderChoice([*chosen, ("CPUExecutionProvider", {})], cuda)


def _place_on_cuda(model: str, weight_bytes: int, devices: DeviceManager) -> Device | None:
    device = devices.place(model, weight_bytes, usable=("cuda",))
    return device if device.kind == "cuda" else None
