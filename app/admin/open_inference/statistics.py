"""Report requests and batches of each version of a model: the protocol's statistics extension."""

import time
from typing import Any

from app.admin.open_inference.metadata import devices_of
from app.observability.tallies import VersionRequests
from app.observability.visible_counts import Counts
from frameworks.engine.contract import RunCounts
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.batch.request import BatchCounts

Duration = dict[str, int]
"""`count`, and `ns` in total."""


def versions_with_statistics(slot: ModelSlot, counts: Counts) -> list[ModelVersion]:
    """Return the versions that accept requests, and those with any request or batch since the start."""
    answering = slot.answering
    run = slot.identity.runs if counts.tenant is None else ()
    return [
        version
        for name, version in slot.versions.items()
        if name in answering or name in run or counts.of_version(slot.name, name) is not None
    ]


def version_statistics(slot: ModelSlot, version: ModelVersion, counts: Counts) -> dict[str, Any]:
    """Return the fields of ModelStatistics.

    `compute_input` is the decoding of a request, `compute_output` the encoding of its response; within a batch the two
    are part of `compute_infer`. `inference_count` counts rows or generated texts, `execution_count` batches or, for a
    model that generates, steps. Batches mix tenants: for a single tenant both count its requests that were computed,
    and there are no `batch_stats`.
    """
    requests = counts.of_version(slot.name, version.version) or VersionRequests()
    runs = RunCounts() if counts.tenant is not None else slot.identity.runs.get(version.version) or RunCounts()
    executions = BatchCounts.total([runs.batches, runs.generated.steps])
    rows = sum(size * count for size, count in runs.batches.sizes.items())
    computed = 0 if counts.tenant is None else requests.answered - requests.cache_hits
    return {
        "name": slot.name,
        "version": version.version,
        "last_inference": _epoch_ms(requests.last_s) if requests.answered or requests.failed else 0,
        "inference_count": rows + runs.generated.texts + computed,
        "execution_count": executions.sizes.total() + computed,
        "inference_stats": _of_requests(requests),
        "batch_stats": [_of_batches(size, executions) for size in sorted(executions.sizes)],
        "memory_usage": _memory(version),
        "response_stats": {},
    }


def _of_requests(requests: VersionRequests) -> dict[str, Duration]:
    """Return the fields of InferStatistics. Cache hits do not count as computed."""
    computed = requests.answered - requests.cache_hits
    return {
        "success": _duration(requests.answered, requests.answered_s),
        "fail": _duration(requests.failed, requests.failed_s),
        "queue": _duration(requests.answered, requests.queue_s),
        "compute_input": _duration(computed, requests.decode_s),
        "compute_infer": _duration(computed, requests.compute_s),
        "compute_output": _duration(computed, requests.encode_s),
        "cache_hit": _duration(requests.cache_hits, requests.cache_hits_s),
        "cache_miss": _duration(requests.cache_misses, 0.0),
    }


def _of_batches(size: int, executions: BatchCounts) -> dict[str, Any]:
    """Return the fields of InferBatchStatistics."""
    count = executions.sizes[size]
    return {
        "batch_size": size,
        "compute_input": _duration(count, 0.0),
        "compute_infer": _duration(count, executions.seconds[size]),
        "compute_output": _duration(count, 0.0),
    }


def _memory(version: ModelVersion) -> list[dict[str, Any]]:
    """Return a list of MemoryUsage, one for each device; empty while the version is not loaded, and for a pipeline."""
    if version.spec is None or not version.process_bytes:
        return []
    sizes: dict[tuple[str, int], int] = {}
    for (kind, number), size in zip(devices_of(version.spec), version.process_bytes, strict=True):
        sizes[kind, number] = sizes.get((kind, number), 0) + size
    return [{"type": kind, "id": number, "byte_size": size} for (kind, number), size in sizes.items()]


def _duration(count: int, seconds: float) -> Duration:
    return {"count": count, "ns": round(max(0.0, seconds) * 1e9)}


def _epoch_ms(at_s: float) -> int:
    """Convert a time of time.perf_counter to Unix milliseconds."""
    return round((time.time() - (time.perf_counter() - at_s)) * 1000)
