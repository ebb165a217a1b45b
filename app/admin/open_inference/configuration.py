"""How a model is run, as Triton's model configuration says it (its message ModelConfig, in JSON)."""

from typing import Any

from app.admin.open_inference.metadata import Described, backend_of, platform_of, told_shape
from app.protocols.open_inference.signature import TensorSignature, signature_for, supports_batching
from frameworks.models.slot import ModelSlot
from frameworks.settings import VersionPolicy
from frameworks.types import DEFAULT_PRIORITY, LAST_PRIORITY, ModelSpec

_STRING = "BYTES"


def model_configuration(described: Described, default_timeout_ms: int | None) -> dict[str, Any]:
    """As ModelConfig. `default_timeout_ms`: of a request that names none.

    Where the first dimension of all tensors is rows that may share a run, `max_batch_size` is above 0 and the `dims`
    leave it out, as Triton has it; else the `dims` are the whole shapes.
    """
    slot, _, spec = described
    signature = signature_for(spec)
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    has_rows = supports_batching(spec) and all(told_shape(tensor)[:1] == [-1] and tensor.shape for tensor in tensors)
    configuration = {
        "name": slot.name,
        "platform": platform_of(slot.framework),
        "backend": backend_of(slot.framework),
        "runtime": "",
        "version_policy": _version_policy(slot.entry.version_policy),
        "max_batch_size": slot.limits.max_rows if has_rows else 0,
        "input": [_input(each, has_rows) for each in signature.inputs.values()],
        "output": [_output(each, has_rows) for each in signature.outputs.values()],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [_instances(slot, spec)],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {name: {"string_value": value} for name, value in _parameters(spec).items()},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": spec.generation is not None},
        "response_cache": {"enable": slot.entry.cache and spec.generation is None},
    }
    if has_rows:
        configuration["dynamic_batching"] = _batching(slot, default_timeout_ms)
    return configuration


def device_of(spec: ModelSpec) -> tuple[str, int]:
    """`CPU` or `GPU`, and which one."""
    kind, _, number = spec.device.partition(":")
    return "CPU" if kind == "cpu" else "GPU", int(number or 0)


def _version_policy(policy: VersionPolicy) -> dict[str, Any]:
    if policy == "all":
        return {"all": {}}
    if policy == "latest":
        return {"latest": {"num_versions": 1}}
    return {"specific": {"versions": list(policy)}}


def _input(tensor: TensorSignature, has_rows: bool) -> dict[str, Any]:
    return _tensor(tensor, has_rows) | {
        "format": "FORMAT_NONE",
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": not tensor.required,
    }


def _output(tensor: TensorSignature, has_rows: bool) -> dict[str, Any]:
    return _tensor(tensor, has_rows) | {"label_filename": "", "is_shape_tensor": False}


def _tensor(tensor: TensorSignature, has_rows: bool) -> dict[str, Any]:
    kind = "STRING" if tensor.datatype == _STRING else tensor.datatype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": told_shape(tensor)[1 if has_rows else 0 :]}


def _instances(slot: ModelSlot, spec: ModelSpec) -> dict[str, Any]:
    kind, number = device_of(spec)
    return {
        "name": slot.name,
        "kind": f"KIND_{kind}",
        "count": slot.entry.instances,
        "gpus": [number] if kind == "GPU" else [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }


def _batching(slot: ModelSlot, default_timeout_ms: int | None) -> dict[str, Any]:
    """Times are in microseconds; a bound of 0 is none."""
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
    """What Triton's configuration has no field for."""
    parameters = {"task": spec.task, "device": spec.device, "dtype": spec.dtype}
    if spec.max_tokens is not None:
        parameters["max_tokens"] = str(spec.max_tokens)
    if spec.providers:
        parameters["execution_providers"] = ",".join(spec.providers)
    if spec.quantization is not None:
        parameters["quantization"] = spec.quantization.scheme
    return parameters
