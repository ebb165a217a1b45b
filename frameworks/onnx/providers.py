"""Which execution providers a session is given: the wanted ones that are there, the CPU always last."""

from dataclasses import dataclass

import structlog

from frameworks.devices import Device

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


def drives_cuda(wanted: tuple[str, ...] | None, rules: ProviderRules) -> bool:
    """Whether a model that wants these providers (None: all) can be put on a CUDA device."""
    return any(_why_not(name, rules) is None for name in wanted or _ON_CUDA if name in _ON_CUDA)


def choose_providers(
    model: str, wanted: tuple[str, ...] | None, device: Device, rules: ProviderRules
) -> ProviderChoice:
    """The providers for one model on this device. `wanted` None means all that are installed, in our order of
    preference.

    What a config names and this machine or build lacks is skipped with a warning.
    """
    cuda = device if device.kind == "cuda" else None
    chosen: list[tuple[str, dict[str, str]]] = []
    for name in wanted or tuple(PROVIDERS):
        reason = _why_not(name, rules)
        if reason is None and name in _ON_CUDA and cuda is None:
            reason = "no CUDA device holds it"
        if reason is not None:
            if wanted:
                log.warning("execution provider skipped", model=model, provider=name, reason=reason)
        elif name != "CPU":
            options = {"device_id": str(cuda.index)} if name in _ON_CUDA and cuda else {}
            chosen.append((_in_build(name, rules) or "", options))
    return ProviderChoice([*chosen, ("CPUExecutionProvider", {})], cuda)


def _why_not(name: str, rules: ProviderRules) -> str | None:
    """Why a provider cannot be used on this machine at all; None where it can."""
    if _in_build(name, rules) is None:
        return "not in this build of onnxruntime"
    if name in _ON_GPU and not rules.enable_gpu:
        return "performance.enable_gpu is false"
    if name == "TensorRT" and not rules.enable_tensorrt:
        return "performance.enable_tensorrt is false"
    return None


def _in_build(name: str, rules: ProviderRules) -> str | None:
    return next((provider for provider in PROVIDERS[name] if provider in rules.available), None)
