"""What has been asked and has run, for each version of a model: the protocol's statistics extension."""

import time
from typing import Any

from app.admin.open_inference.configuration import device_of
from app.observability.metrics import Observer, VersionRequests
from frameworks.models.identity import RunCounts
from frameworks.models.slot import ModelSlot
from frameworks.models.version import ModelVersion
from frameworks.scheduling.batch.request import BatchCounts

Duration = dict[str, int]
"""`count` and `ns`."""


def counted_versions(slot: ModelSlot, observer: Observer) -> list[ModelVersion]:
    """Those that answer, and those that have anything to tell of."""
    answering = slot.answering
    return [
        version
        for name, version in slot.versions.items()
        if name in answering or name in slot.identity.runs or (slot.name, name) in observer.versions
    ]


def version_statistics(slot: ModelSlot, version: ModelVersion, observer: Observer) -> dict[str, Any]:
    """As ModelStatistics.

    Reading a question counts as `compute_input`, writing its answer as `compute_output`; those of a whole batch, which
    are done within its run, are not known apart from it. `inference_count` are rows, or texts generated, and
    `execution_count` batches, or the steps of a model that generates, by how many texts were in each.
    """
    requests = observer.versions.get((slot.name, version.version)) or VersionRequests()
    runs = slot.identity.runs.get(version.version) or RunCounts()
    executions = BatchCounts.total([runs.batches, runs.generated.steps])
    rows = sum(size * count for size, count in runs.batches.sizes.items())
    return {
        "name": slot.name,
        "version": version.version,
        "last_inference": _epoch_ms(requests.last_s) if requests.answered or requests.failed else 0,
        "inference_count": rows + runs.generated.texts,
        "execution_count": executions.sizes.total(),
        "inference_stats": _of_requests(requests),
        "batch_stats": [_of_batches(size, executions) for size in sorted(executions.sizes)],
        "memory_usage": _memory(version),
        "response_stats": {},
    }


def _of_requests(requests: VersionRequests) -> dict[str, Duration]:
    """As InferStatistics: those that were answered from what is kept have not computed anything."""
    ran = requests.answered - requests.kept
    return {
        "success": _duration(requests.answered, requests.answered_s),
        "fail": _duration(requests.failed, requests.failed_s),
        "queue": _duration(requests.answered, requests.queue_s),
        "compute_input": _duration(ran, requests.decode_s),
        "compute_infer": _duration(ran, requests.compute_s),
        "compute_output": _duration(ran, requests.encode_s),
        "cache_hit": _duration(requests.kept, requests.kept_s),
        "cache_miss": _duration(requests.not_kept, 0.0),
    }


def _of_batches(size: int, executions: BatchCounts) -> dict[str, Any]:
    """As InferBatchStatistics."""
    count = executions.sizes[size]
    return {
        "batch_size": size,
        "compute_input": _duration(count, 0.0),
        "compute_infer": _duration(count, executions.seconds[size]),
        "compute_output": _duration(count, 0.0),
    }


def _memory(version: ModelVersion) -> list[dict[str, Any]]:
    """As MemoryUsage: what it takes while it is loaded."""
    if version.spec is None:
        return []
    kind, number = device_of(version.spec)
    return [{"type": kind, "id": number, "byte_size": version.memory_bytes}]


def _duration(count: int, seconds: float) -> Duration:
    return {"count": count, "ns": round(max(0.0, seconds) * 1e9)}


def _epoch_ms(at_s: float) -> int:
    """Of a time.perf_counter: milliseconds since 1970."""
    return round((time.time() - (time.perf_counter() - at_s)) * 1000)
