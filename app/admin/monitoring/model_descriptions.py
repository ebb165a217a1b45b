"""Describe the models for the page: only the fields that change while a server runs."""

from typing import Any

from app.admin.models.descriptions import describe_download, reason_of, share_of
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion


def describe_model(slot: ModelSlot, sees_paths: bool) -> dict[str, Any]:
    """Return the state of a model and of its versions, without counts. `sees_paths`: of the reader."""
    spec, entry = slot.spec, slot.entry
    answering = slot.answering
    return {
        "name": slot.name,
        "framework": slot.framework,
        "task": spec.task if spec else None,
        "state": slot.state.value,
        "reason": reason_of(slot, sees_paths),
        "active_version": slot.version,
        "previous_version": slot.previous.version if slot.previous else None,
        "canary": share_of(slot.canary),
        "shadow": share_of(slot.shadow),
        "device": spec.device if spec else None,
        "dtype": spec.dtype if spec else None,
        "quantized": bool(spec and spec.quantization),
        "memory_bytes": slot.memory_bytes if spec else None,
        "generates": slot.generates or bool(spec and spec.generation),
        "downloadable": entry.downloadable,
        "pinned": entry.pinned,
        "load": entry.load,
        "isolation": slot.isolation,
        "max_batch_size": slot.limits.max_rows,
        "instances": entry.instances,
        "queue_limit": slot.requests.max_queue_size,
        "adapters": [each.name for each in slot.adapters],
        "versions": {name: _version(version, name in answering, sees_paths) for name, version in slot.versions.items()},
    }


def _version(version: ModelVersion, answers: bool, sees_paths: bool) -> dict[str, Any]:
    spec = version.spec
    return {
        "state": version.state.value,
        "reason": reason_of(version, sees_paths),
        "answers": answers,
        "memory_bytes": version.total_bytes if spec else None,
        "device": spec.device if spec else None,
        "loads": version.loads,
        "load_seconds": round(version.load_s, 3),
        "download": describe_download(version),
    }
