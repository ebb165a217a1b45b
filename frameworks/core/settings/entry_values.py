"""Validate values of the keys of a model's entry: devices, providers, dtypes, versions."""

import re
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationInfo

from frameworks.core.cpus import parse_cpus

Provider = Literal["TensorRT", "CUDA", "ROCm", "CoreML", "DirectML", "OpenVINO", "CPU"]
VersionPolicy = Literal["latest", "all"] | tuple[int, ...]

ALL_CUDA = "cuda:*"
"""The `device` of a model with a process on each CUDA device."""

EXECUTION_PROVIDERS: tuple[Provider, ...] = get_args(Provider)
"""Our names of ONNX Runtime's execution providers, in the order they are preferred when a model names none."""

_PROVIDER_BY_LOWER_NAME = {name.lower(): name for name in EXECUTION_PROVIDERS} | {"dml": "DirectML"}
_DTYPE_BY_SPELLING = {
    "float32": "f32", "fp32": "f32", "float16": "f16", "fp16": "f16", "bfloat16": "bf16",
}  # fmt: skip
_MAX_DEVICES = 64
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", re.ASCII)


def canonical_provider(value: object) -> object:
    """Takes any case, and ONNX Runtime's own names ("CUDAExecutionProvider"); the type refuses what stays unknown."""
    if not isinstance(value, str):
        return value
    return _PROVIDER_BY_LOWER_NAME.get(value.lower().removesuffix("executionprovider"), value)


def order_of_preference(providers: tuple[Provider, ...]) -> tuple[Provider, ...]:
    """Return the providers, each once. Raises ValueError where there is none."""
    if not providers:
        raise ValueError('expected at least one name, like ["CPU"]; remove the key to use all installed ones')
    return tuple(dict.fromkeys(providers))


def canonical_dtype(value: object) -> object:
    """Return our name of a dtype; other values are returned as they are."""
    return _DTYPE_BY_SPELLING.get(value.lower(), value.lower()) if isinstance(value, str) else value


def checked_device(value: object) -> str | tuple[str, ...]:
    """Return the value of `device`. Raises ValueError."""
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= _MAX_DEVICES:
            raise ValueError(f'expected 1 to {_MAX_DEVICES} devices, like ["cuda:0", "cuda:1"]')
        return tuple(_one_device(each) for each in value)
    if isinstance(value, str) and value.lower() == ALL_CUDA:
        return ALL_CUDA
    return _one_device(value)


def _one_device(value: object) -> str:
    device = value.lower() if isinstance(value, str) else ""
    if not _DEVICE.fullmatch(device):
        raise ValueError('expected "auto", "cuda", "cuda:1" (a GPU by its number), "mps" or "cpu"')
    return device


def names_several_devices(device: object) -> bool:
    """Whether a `device` is a list, or all CUDA devices: the model then has a process for each."""
    return isinstance(device, list | tuple) or (isinstance(device, str) and device.lower() == ALL_CUDA)


def beside_isolation(device: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
    """Return the value of `device`. Raises ValueError for several beside `isolation = "none"`."""
    if names_several_devices(device) and info.data.get("isolation") == "none":
        raise ValueError('expected one device beside isolation = "none"; name one, or set isolation = "process"')
    return device


def beside_one_device(tensor_parallel: int, info: ValidationInfo) -> int:
    """Return the value of `tensor_parallel`. Raises ValueError for several ranks beside a key that they exclude."""
    if tensor_parallel == 1:
        return tensor_parallel
    if names_several_devices(info.data.get("device")) or info.data.get("device") == "mps":
        raise ValueError('expected device = "auto", "cuda", "cuda:1" or "cpu" beside it; name the first device')
    if info.data.get("isolation") == "none":
        raise ValueError('expected no isolation = "none" beside it; remove one of them')
    return tensor_parallel


def beside_sequence_axis(value: Any, info: ValidationInfo) -> Any:
    """Return the value of a key that belongs to `sequence_axis`. Raises ValueError without it."""
    if info.data.get("sequence_axis", 1) is None:
        raise ValueError("expected no value without sequence_axis; set sequence_axis or remove this key")
    return value


def without_input_values(value: Any, info: ValidationInfo) -> Any:
    """Return the value of `warm_up`. Raises ValueError beside `input_values`."""
    if info.data.get("input_values") is not None:
        raise ValueError("expected input_values or warm_up, got both; remove one")
    return value


def without_other_copies(kernels: str, info: ValidationInfo) -> str:
    """Return the value of `kernels` of a graph. Raises ValueError beside a copy that only ONNX Runtime computes."""
    quantized = info.data.get("quantized")
    allowed: tuple[str, ...] = ("onnxruntime",) if quantized == "mixed" else ("onnxruntime", "compiled")
    if quantized and kernels not in allowed:
        names = " or ".join(f'"{each}"' for each in allowed)
        shown = '"mixed"' if quantized == "mixed" else "true"
        raise ValueError(f'expected {names} beside quantized = {shown}, got "{kernels}"; change one of them')
    return kernels


def without_lookup(draft_model: Path, info: ValidationInfo) -> Path:
    """Return the value of `draft_model`. Raises ValueError beside another source of proposed tokens."""
    if info.data.get("speculation") == "lookup":
        raise ValueError('expected no draft model beside speculation = "lookup"; remove one of them')
    return draft_model


def checked_cpus(value: object) -> object:
    """Return the value of `cpus`. Raises ValueError."""
    if isinstance(value, str):
        parse_cpus(value)
    return value


def checked_version_policy(value: object) -> VersionPolicy:
    """Return the value of `version_policy`. Raises ValueError."""
    if value == "latest" or value == "all":  # noqa: PLR1714 - each is a literal of its own
        return value
    if isinstance(value, list | tuple) and value and all(type(item) is int and item >= 1 for item in value):
        return tuple(sorted(set(value)))
    raise ValueError('expected "latest", "all" or a list of version numbers, like [1, 3]')
