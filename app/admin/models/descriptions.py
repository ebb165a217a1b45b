"""Describe models for /models: fill the fields of the response bodies."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from app.admin.progress import work_of
from app.inference.unnamed_model import kind_of
from app.observability.visible_counts import Counts, sequences_of
from frameworks.core.addresses import SourceAddress
from frameworks.images.spec import ImageSpec
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version import ModelVersion
from frameworks.types import ModelSpec, ValueSpec


def list_model(slot: ModelSlot) -> dict[str, Any]:
    """Return the ListedModel of a model."""
    kind = None if slot.spec is None else kind_of(slot.spec) or slot.spec.task
    return {
        "id": slot.name,
        "object": "model",
        "backend": slot.framework,
        "capabilities": [] if kind is None else [kind],
        "stats": {},
    }


def describe(slot: ModelSlot, counts: Counts) -> dict[str, Any]:
    """Return the fields of ModelDescription. `counts`: those that the reader may see."""
    spec = slot.spec
    unused_s = counts.seconds_unused(slot)
    total, failed = counts.completed(slot.name)
    return state_of(slot, counts.sees_paths) | {
        "aliases": list(slot.entry.aliases),
        "versions": list(slot.versions),
        "quantization": asdict(spec.quantization) if spec and spec.quantization else None,
        "kernels": [asdict(each) for each in spec.products] if spec else [],
        "awaits_kernels": bool(spec and spec.awaits_kernels),
        "progress": work_of(slot.name),
        "attention": _attention(spec),
        "vision": asdict(spec.vision) if spec and spec.vision else None,
        "source": _source(spec),
        "graphs": spec.graphs if spec else None,
        "warm_up": _warm_up(spec),
        "inputs": _tensors(spec.inputs) if spec else None,
        "outputs": _tensors(spec.outputs) if spec else None,
        "image": _image(spec.image) if spec and spec.image else None,
        "vectors": spec.text.vectors if spec and spec.text and spec.task == "embed" else None,
        "other_vectors": list(spec.text.other_vectors) if spec and spec.text and spec.task == "embed" else None,
        "reads": list(spec.pipeline.reads) if spec and spec.pipeline else None,
        "parameters": list(map(asdict, spec.pipeline.parameters)) if spec and spec.pipeline else None,
        "last_used": None if unused_s is None else (datetime.now(UTC) - timedelta(seconds=unused_s)).isoformat(),
        "requests": {"total": total, "failed": failed, "inflight": counts.in_flight([slot])},
    }


def describe_in_detail(slot: ModelSlot, counts: Counts) -> dict[str, Any]:
    """Return the fields of ModelDetail: those of `describe`, and the versions."""
    details = {name: _version_detail(slot, version, counts) for name, version in slot.versions.items()}
    return describe(slot, counts) | traffic_of(slot) | {"adapters": _adapters(slot), "version_details": details}


def state_of(slot: ModelSlot, sees_paths: bool) -> dict[str, Any]:
    """Return the fields of ModelDescription that every page of models shows. `sees_paths`: of the reader."""
    spec = slot.spec
    return {
        "name": slot.name,
        "framework": slot.framework,
        "task": spec.task if spec else None,
        "state": slot.state.value,
        "reason": reason_of(slot, sees_paths),
        "device": spec.device if spec else None,
        "dtype": spec.dtype if spec else None,
        "quantized": bool(spec and spec.quantization),
        "downloadable": slot.entry.downloadable,
        "memory_bytes": slot.memory_bytes if spec else None,
    }


def traffic_of(slot: ModelSlot) -> dict[str, Any]:
    """Return the fields of ModelDetail that say which versions answer requests."""
    return {
        "active_version": slot.version,
        "previous_version": slot.previous.version if slot.previous else None,
        "canary": _share_of(slot.canary),
        "shadow": _share_of(slot.shadow),
    }


def state_of_version(version: ModelVersion, sees_paths: bool) -> dict[str, Any]:
    """Return the fields of VersionDetail that every page of models shows."""
    spec, download = version.spec, version.model.downloads.running.get(version.version)
    return {
        "state": version.state.value,
        "reason": reason_of(version, sees_paths),
        "memory_bytes": version.total_bytes if spec else None,
        "device": spec.device if spec else None,
        "loads": version.loads,
        "load_seconds": round(version.load_s, 3),
        "download": download
        and {"received_bytes": download.progress.received_bytes, "total_bytes": download.progress.total_bytes},
    }


def _share_of(share: Share | None) -> dict[str, Any] | None:
    """Return a TrafficShare; None without one."""
    return {"version": share.version, "percent": share.percent} if share else None


def _adapters(slot: ModelSlot) -> list[dict[str, Any]]:
    generation = slot.spec.generation if slot.spec else None
    loaded = {each.name: each for each in generation.adapters} if generation else {}
    found = [(entry.name, loaded.get(entry.name)) for entry in slot.adapters]
    return [
        {"name": name, "rank": spec.rank if spec else None, "memory_bytes": spec.memory_bytes if spec else None}
        for name, spec in found
    ]


def _version_detail(slot: ModelSlot, version: ModelVersion, counts: Counts) -> dict[str, Any]:
    spec = version.spec
    text, generation = (spec.text, spec.generation) if spec else (None, None)
    max_tokens = generation.max_context_tokens if generation else text.max_tokens if text else None
    return state_of_version(version, counts.sees_paths) | {
        "providers": list(spec.providers) if spec else [],
        "max_tokens": max_tokens,
        "labels": list(spec.labels) if spec and spec.labels else None,
        "warm_up": _warm_up(spec),
        "batching": (spec.unbatched_because if spec else None) or "on",
        "padding": _padding(spec),
        "sequences": _sequences(version, spec, counts.tenant),
        "max_batch_size": slot.limits.max_rows,
        "instances": slot.entry.instances,
        "queue_depth": counts.queue_depth(slot),
        "path": _path_of(slot, version, counts.sees_paths),
        "revision": None if version.fetched is None else version.fetched.revision,
    }


def _padding(spec: ModelSpec | None) -> str | None:
    if spec is None or (spec.sequence is None and spec.text is None):
        return None
    reasons = [each.unpadded_because for each in (spec.sequence, spec.text) if each is not None]
    return next((reason for reason in reasons if reason is not None), "on")


def _sequences(version: ModelVersion, spec: ModelSpec | None, tenant: str | None) -> dict[str, Any] | None:
    if spec is None or spec.state is None:
        return None
    count, size = sequences_of([version], tenant)
    return {
        "states": [asdict(pair) for pair in spec.state.pairs],
        "count": count,
        "bytes": size,
        "max_bytes": spec.state.max_bytes,
        "idle_timeout_s": spec.state.idle_s,
    }


def _attention(spec: ModelSpec | None) -> str | None:
    if spec is None or spec.generation is None:
        return None
    reason = spec.generation.unpaged_because
    return "paged" if reason is None else f"transformers: {reason}"


def _source(spec: ModelSpec | None) -> dict[str, Any] | None:
    if spec is None or spec.generation is None or spec.generation.source is None:
        return None
    source, beams = spec.generation.source, spec.generation.sampling.beams
    return {
        "task": source.task,
        "max_tokens": source.max_tokens,
        "max_new_tokens": source.max_new_tokens,
        "num_beams": 1 if beams is None else beams.num_beams,
        "source_languages": list(source.source_languages),
        "target_languages": list(source.target_languages),
    }


def _warm_up(spec: ModelSpec | None) -> str | None:
    return None if spec is None else printable(spec.unwarmed_because or "done")


def _path_of(slot: ModelSlot, version: ModelVersion, sees_paths: bool) -> str | None:
    """Return the address, or the path of the entry with the folder of the version, which is relative if the entry's is.

    None: a path that the reader may not see.
    """
    if isinstance(slot.entry.path, SourceAddress):
        return str(slot.entry.path)
    return printable(str(slot.entry.path / version.path.relative_to(slot.path))) if sees_paths else None


def reason_of(failed: ModelSlot | ModelVersion, sees_paths: bool) -> str | None:
    """Return the reason of the state `failed` for a reader; None in other states."""
    reason = failed.reason if sees_paths else failed.public_reason
    return printable(reason) if reason else None


def printable(text: str) -> str:
    """Replace what JSON cannot hold: a file name may contain bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _image(image: ImageSpec) -> dict[str, Any]:
    return {
        "height": image.height or None,
        "width": image.width or None,
        "labels": len(image.labels) or None,
        "embedding_size": image.embedding_size,
    }


def _tensors(specs: tuple[ValueSpec, ...]) -> list[dict[str, Any]]:
    return [
        {"name": spec.name, "dtype": str(spec.type), "shape": list(spec.shape) if spec.shape is not None else None}
        for spec in specs
    ]
