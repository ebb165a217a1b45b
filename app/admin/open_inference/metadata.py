"""What server and models are, in the words that the protocol has for it: the metadata of both."""

from typing import Any, NamedTuple

from app import VERSION
from app.protocols.open_inference.signature import TensorSignature, signature_for
from frameworks.models.slot import ModelSlot
from frameworks.models.version import ModelVersion
from frameworks.types import ModelSpec

EXTENSIONS = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "generate",
)
"""Of Triton's extensions those that are here, by its names. No model depends on another: whoever unloads a model with
its dependents has unloaded all of them.
"""

_PLATFORMS = {"onnx": "onnxruntime_onnx"}
_BACKENDS = {"onnx": "onnxruntime"}


class Described(NamedTuple):
    """A version of a model, and what it is or, where it has left to make room, was."""

    slot: ModelSlot
    version: ModelVersion
    spec: ModelSpec


def server_metadata() -> dict[str, Any]:
    """As ServerMetadataResponse."""
    return {"name": "roundhouse", "version": VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(described: Described, versions: list[str]) -> dict[str, Any]:
    """As ModelMetadataResponse. `versions`: that may be asked for."""
    signature = signature_for(described.spec)
    return {
        "name": described.slot.name,
        "versions": versions,
        "platform": platform_of(described.slot.framework),
        "inputs": [_tensor(each) for each in signature.inputs.values()],
        "outputs": [_tensor(each) for each in signature.outputs.values()],
    }


def platform_of(framework: str) -> str:
    """By Triton's names, where it has one."""
    return _PLATFORMS.get(framework, framework)


def backend_of(framework: str) -> str:
    return _BACKENDS.get(framework, framework)


def told_shape(tensor: TensorSignature) -> list[int]:
    """The protocol has no word for a tensor of any rank: one free dimension stands for it."""
    return [-1] if tensor.shape is None else list(tensor.shape)


def _tensor(tensor: TensorSignature) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": told_shape(tensor)}
