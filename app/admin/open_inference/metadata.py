"""Describe the server and its models in the protocol's terms: metadata, and Triton's model configuration."""

from typing import Any, NamedTuple

from app import server_version
from app.protocols.open_inference.datatypes import DATATYPES
from app.protocols.open_inference.signature import TensorSignature, signature_for, supports_batching
from frameworks.core.settings.entry_values import VersionPolicy
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion
from frameworks.types import DEFAULT_PRIORITY, LAST_PRIORITY, ModelSpec, StateSpec

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
"""The supported extensions by Triton's names. `unload_dependents` is trivial, because no model depends on another."""

_PLATFORMS = {"onnx": "onnxruntime_onnx"}
_BACKENDS = {"onnx": "onnxruntime"}


class VersionInfo(NamedTuple):
    """A version of a model with its spec; after an eviction, the spec of its last load."""

    slot: ModelSlot
    version: ModelVersion
    spec: ModelSpec


def server_metadata() -> dict[str, Any]:
    """Return the fields of ServerMetadataResponse."""
    return {"name": "roundhouse", "version": server_version(), "extensions": list(EXTENSIONS)}


def model_metadata(info: VersionInfo, versions: list[str]) -> dict[str, Any]:
    """Return the fields of ModelMetadataResponse. `versions`: those that accept requests."""
    signature = signature_for(info.spec)
    return {
        "name": info.slot.name,
        "versions": versions,
        "platform": platform_of(info.slot.framework),
        "inputs": [_tensor(each) for each in signature.inputs.values()],
        "outputs": [_tensor(each) for each in signature.outputs.values()],
    }


def model_configuration(info: VersionInfo, default_timeout_ms: int | None) -> dict[str, Any]:
    """Return the fields of ModelConfig. `default_timeout_ms`: of a request without a timeout.

    If requests can be batched along the first dimension of all tensors, `max_batch_size` is above 0 and `dims` omit
    that dimension, as in Triton. Otherwise `dims` are the whole shapes.
    """
    slot, _, spec = info
    signature = signature_for(spec)
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    is_batched = supports_batching(spec) and all(shape_of(tensor)[:1] == [-1] and tensor.shape for tensor in tensors)
    configuration = {
        "name": slot.name,
        "platform": platform_of(slot.framework),
        "backend": backend_of(slot.framework),
        "runtime": "",
        "version_policy": _version_policy(slot.entry.version_policy),
        "max_batch_size": slot.limits.max_rows if is_batched else 0,
        "input": [_input(each, is_batched) for each in signature.inputs.values()],
        "output": [_output(each, is_batched) for each in signature.outputs.values()],
        "batch_input": [],
        "batch_output": [],
        "instance_group": _instances(slot, spec),
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {name: {"string_value": value} for name, value in _parameters(spec).items()},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": spec.generation is not None},
        "response_cache": {"enable": slot.entry.cache and spec.generation is None},
    }
    if spec.state is not None:
        configuration["sequence_batching"] = _sequence_batching(spec.state)
    elif is_batched:
        configuration["dynamic_batching"] = _batching(slot, default_timeout_ms)
    return configuration


def _sequence_batching(state: StateSpec) -> dict[str, Any]:
    """Return the fields of ModelSequenceBatching, by which clients find that requests need a sequence."""
    return {
        "max_sequence_idle_microseconds": round(state.idle_s * 1e6),
        "control_input": [],
        "state": [
            {
                "input_name": pair.input,
                "output_name": pair.output,
                "data_type": f"TYPE_{DATATYPES[pair.dtype]}",
                "dims": list(pair.shape),
            }
            for pair in state.pairs
        ],
        "oldest": {},
    }


def platform_of(framework: str) -> str:
    """Return Triton's name of a framework, or its own name if Triton has none."""
    return _PLATFORMS.get(framework, framework)


def backend_of(framework: str) -> str:
    return _BACKENDS.get(framework, framework)


def shape_of(tensor: TensorSignature) -> list[int]:
    """Return the shape. The protocol cannot express an unknown rank: it becomes one free dimension."""
    return [-1] if tensor.shape is None else list(tensor.shape)


def devices_of(spec: ModelSpec) -> list[tuple[str, int]]:
    """Return `CPU` or `GPU` and the number of the device, for each process of the model."""
    parts = [device.partition(":") for device in spec.device.split(",")]
    return [("CPU" if kind == "cpu" else "GPU", int(number or 0)) for kind, _, number in parts]


def _tensor(tensor: TensorSignature) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape_of(tensor)}


def _version_policy(policy: VersionPolicy) -> dict[str, Any]:
    if policy == "all":
        return {"all": {}}
    if policy == "latest":
        return {"latest": {"num_versions": 1}}
    return {"specific": {"versions": list(policy)}}


def _input(tensor: TensorSignature, is_batched: bool) -> dict[str, Any]:
    return _configured_tensor(tensor, is_batched) | {
        "format": "FORMAT_NONE",
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": not tensor.required,
    }


def _output(tensor: TensorSignature, is_batched: bool) -> dict[str, Any]:
    return _configured_tensor(tensor, is_batched) | {"label_filename": "", "is_shape_tensor": False}


def _configured_tensor(tensor: TensorSignature, is_batched: bool) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": shape_of(tensor)[1 if is_batched else 0 :]}


def _instances(slot: ModelSlot, spec: ModelSpec) -> list[dict[str, Any]]:
    """Return a list of ModelInstanceGroup, one for each device of the model."""
    devices = devices_of(spec)
    return [
        {
            "name": slot.name if len(devices) == 1 else f"{slot.name}_{index}",
            "kind": f"KIND_{kind}",
            "count": slot.entry.instances,
            "gpus": [number] if kind == "GPU" else [],
            "secondary_devices": [],
            "profile": [],
            "passive": False,
            "host_policy": "",
        }
        for index, (kind, number) in enumerate(devices)
    ]


def _batching(slot: ModelSlot, default_timeout_ms: int | None) -> dict[str, Any]:
    """Return the fields of ModelDynamicBatching. Times are in microseconds; a bound of 0 means no bound."""
    return {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": round(slot.limits.max_delay_s * 1e6),
        "preserve_ordering": False,
        "priority_levels": LAST_PRIORITY,
        "default_priority_level": DEFAULT_PRIORITY,
        "default_queue_policy": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 1000 * (default_timeout_ms or 0),
            "allow_timeout_override": True,
            "max_queue_size": slot.entry.max_queue_size or 0,
        },
        "priority_queue_policy": {},
    }


def _parameters(spec: ModelSpec) -> dict[str, str]:
    """Return the settings for which ModelConfig has no field."""
    parameters = {"task": spec.task, "device": spec.device, "dtype": spec.dtype}
    if spec.max_tokens is not None:
        parameters["max_tokens"] = str(spec.max_tokens)
    if spec.providers:
        parameters["execution_providers"] = ",".join(spec.providers)
    if spec.quantization is not None:
        parameters["quantization"] = spec.quantization.scheme
    return parameters
