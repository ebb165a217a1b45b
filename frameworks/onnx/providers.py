"""Choose a session's execution providers: the wanted ones that are available, the CPU always last."""

from dataclasses import dataclass

import structlog

from frameworks.core.devices import Device

log = structlog.get_logger(__name__)

# Name in config.toml → name in ONNX Runtime, in order of preference. Newer builds have ROCm as MIGraphX.
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
Options = dict[str, str]
SessionProviders = list[tuple[str, Options]]
_DEVICE_OF = {"TensorRT": "cuda", "CUDA": "cuda", "ROCm": "rocm", "CoreML": "coreml", "DirectML": "directml"}


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """ONNX Runtime's providers in this build, and what `[performance]` allows."""

    available: tuple[str, ...]
    enable_gpu: bool
    enable_tensorrt: bool


@dataclass(frozen=True, slots=True)
class GraphDevice:
    """Where CUDA graphs are captured, as OrtValue names it, and the maximum rows of a batch."""

    kind: str
    index: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """`session_providers` as InferenceSession takes them: (name, options), the first is preferred. `fallbacks`: what to
    try in turn where a session cannot be opened with them; None: what ONNX Runtime itself tries.
    `captures`: where its runs are captured as CUDA graphs; None: they are not.
    """

    session_providers: SessionProviders
    cuda: Device | None
    fallbacks: tuple[SessionProviders, ...] | None = None
    captures: GraphDevice | None = None

    def device_of(self, active: str) -> str:
        """Return the device of a session whose first active provider is `active`, as /models shows it."""
        name = next((name for name, theirs in PROVIDERS.items() if active in theirs), "CPU")
        kind = _DEVICE_OF.get(name, "cpu")
        return self.cuda.id if kind == "cuda" and self.cuda else kind


def drives_cuda(wanted: tuple[str, ...] | None, rules: ProviderRules) -> bool:
    """Return whether a model with these providers (None: all) can run on a CUDA device."""
    return any(_unavailable_reason(name, rules) is None for name in wanted or _ON_CUDA if name in _ON_CUDA)


def choose_providers(
    model: str, wanted: tuple[str, ...] | None, device: Device, rules: ProviderRules
) -> ProviderChoice:
    """Choose the providers for one model on this device. `wanted` None: all installed ones, in our order of preference.

    A provider that the config names and this machine or build lacks is skipped with a warning.
    """
    cuda = device if device.kind == "cuda" else None
    chosen: SessionProviders = []
    for name in wanted or tuple(PROVIDERS):
        reason = _unavailable_reason(name, rules)
        if reason is None and name in _ON_CUDA and cuda is None:
            reason = "no CUDA device holds it"
        if reason is not None:
            if wanted:
                log.warning("execution provider skipped", model=model, provider=name, reason=reason)
        elif name != "CPU":
            options = {"device_id": str(cuda.index)} if name in _ON_CUDA and cuda else {}
            chosen.append((_in_build(name, rules) or "", options))
    return ProviderChoice([*chosen, ("CPUExecutionProvider", {})], cuda)


def _unavailable_reason(name: str, rules: ProviderRules) -> str | None:
    """Return why a provider cannot be used on this machine, or None."""
    if _in_build(name, rules) is None:
        return "not in this build of onnxruntime"
    if name in _ON_GPU and not rules.enable_gpu:
        return "performance.enable_gpu is false"
    if name == "TensorRT" and not rules.enable_tensorrt:
        return "performance.enable_tensorrt is false"
    return None


def _in_build(name: str, rules: ProviderRules) -> str | None:
    return next((provider for provider in PROVIDERS[name] if provider in rules.available), None)
