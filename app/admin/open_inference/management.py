"""Answer management requests for REST and gRPC.

Results are dicts in Triton's JSON form; the messages of its GRPCInferenceService have the same fields."""

import time
from collections.abc import Mapping
from typing import Any

from app.admin.models.failures import as_failed_model
from app.admin.open_inference.metadata import VersionInfo, devices_of, model_configuration, model_metadata
from app.admin.views import View
from app.inference.lifecycle import ServerLifecycle
from app.inference.pipeline import Pipeline
from app.observability.tallies import VersionRequests
from app.observability.visible_counts import Counts
from app.protocols.shared.errors import NotSupported
from frameworks.core.errors import ModelLoading, ModelUnloaded, RoundhouseError
from frameworks.engine.contract import RunCounts
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.batch.request import BatchCounts

_READY = "READY"
_ON_DEMAND = "not in memory; the next request loads it"


class Management:
    """Owned by the event loop. Where a version may be named, "" is the active version.

    `view`: the models and counts that the sender of the request may see.
    """

    def __init__(self, pipeline: Pipeline, lifecycle: ServerLifecycle) -> None:
        self._pipeline = pipeline
        self._lifecycle = lifecycle

    def why_not_ready(self, view: View) -> RoundhouseError | None:
        """Return the error that keeps the server from being ready; None if it is ready. It names visible models."""
        try:
            self._lifecycle.check_accepting()
        except RoundhouseError as error:
            return error
        pending = self._lifecycle.pending_models()
        if not pending:
            return None
        visible = [name for name in pending if view.models.get(name) is not None]
        return ModelLoading(f"the server is not ready: it waits for {', '.join(visible) or 'models'}; try again later")

    def why_model_not_ready(self, view: View, name: str, version: str = "") -> RoundhouseError | None:
        """Return the error that a request to the model would get; None if it would be answered.

        A lazy or evicted model is ready, because the next request loads it.
        """
        try:
            self._lifecycle.check_accepting()
            _find(view, name, version)[1].known_spec()
        except RoundhouseError as error:
            return error
        return None

    async def model_metadata(self, view: View, name: str, version: str = "", may_load: bool = True) -> dict[str, Any]:
        """Return the fields of ModelMetadataResponse.

        Loads a model that was never loaded, or raises ModelLoading; the metadata of an evicted model is known without
        a load. Raises the error that a request to the model would get.
        """
        info = await self._version_info(view, name, version, may_load)
        return model_metadata(info, [version] if version else info.slot.answering)

    async def model_configuration(
        self, view: View, name: str, version: str = "", may_load: bool = True
    ) -> dict[str, Any]:
        """Return the fields of ModelConfig. Loads and raises as `model_metadata`."""
        info = await self._version_info(view, name, version, may_load)
        return model_configuration(info, self._pipeline.bounds.default_timeout_ms)

    async def model_statistics(self, view: View, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the fields of ModelStatisticsResponse: of a version, of a model's versions, or of all models.

        Raises ModelNotFound, VersionNotFound.
        """
        models, counts = view
        await counts.refresh()
        if name and version:
            slot = models.slot(name)
            counted = [(slot, slot.find(version))]
        else:
            slots = [models.slot(name)] if name else models.slots
            counted = [(slot, each) for slot in slots for each in versions_with_statistics(slot, counts)]
        return {"model_stats": [version_statistics(slot, each, counts) for slot, each in counted]}

    def repository_index(self, view: View, ready_only: bool = False) -> list[dict[str, str]]:
        """Return the `models` of RepositoryIndexResponse: all versions, or only those that accept requests."""
        versions = [(slot, version) for slot in view.models.slots for version in slot.versions.values()]
        entries = [_index_entry(slot, version, view.counts.sees_paths) for slot, version in versions]
        return [entry for entry in entries if entry["state"] == _READY or not ready_only]

    async def load(self, view: View, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, including a version that was added to its folder; return when it is ready.

        Raises NotSupported, and as MLFrameworkManager.load; invalid model files are a ModelFailed.
        """
        self._lifecycle.check_accepting()
        view.models.slot(name)
        _check_load_parameters(parameters)
        with as_failed_model(name):
            await view.models.load(name)

    async def unload(self, view: View, name: str, drain_timeout_s: float | None = None) -> None:
        """Unload a model after its running requests; `drain_timeout_s` as MLFrameworkManager.unload.

        Raises ModelNotFound.
        """
        await view.models.unload(name, drain_timeout_s=drain_timeout_s)

    async def _version_info(self, view: View, name: str, version: str, may_load: bool) -> VersionInfo:
        while True:
            slot, found = _find(view, name, version)
            spec = found.known_spec()
            if spec is not None:
                return VersionInfo(slot, found, spec)
            if not may_load:
                raise ModelLoading(
                    f'model "{name}" was never loaded, and GET loads no model; its first request loads it, or POST '
                    f"/v2/repository/models/{name}/load"
                )
            permit = self._pipeline.new_permit(view.models.principal.tenant)
            try:
                permit.queue(slot.requests)
                await view.models.wait_for(found, permit)
            finally:
                permit.release()


def _find(view: View, name: str, version: str) -> tuple[ModelSlot, ModelVersion]:
    slot = view.models.slot(name)
    return slot, slot.version_named(version) if version else slot.default_version


def _check_load_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise NotSupported for parameters that replace the model's entry in config.toml. Ignore other parameters."""
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise NotSupported(
                f"parameters.{name[:200]}: expected none, because the model's entry in config.toml decides how it is "
                "loaded; register a model with other settings by POST /models"
            )


def _index_entry(slot: ModelSlot, version: ModelVersion, sees_paths: bool) -> dict[str, str]:
    state, reason = _state_of(slot, version, sees_paths)
    return {
        "name": slot.name,
        "version": version.version,
        "state": state,
        # An error message may contain a file name that is not valid UTF-8.
        "reason": reason.encode("utf-8", "replace").decode(),
    }


def _state_of(slot: ModelSlot, version: ModelVersion, sees_paths: bool) -> tuple[str, str]:
    """Return Triton's name of the state, and its reason."""
    if version.version not in slot.answering:
        return "UNAVAILABLE", "not selected by version_policy"
    try:
        version.known_spec()
    except ModelUnloaded:
        return "UNLOADING" if version.state is ModelState.DRAINING else "UNAVAILABLE", "unloaded"
    except RoundhouseError as error:
        reason = error.message if sees_paths else error.public
        return "LOADING" if version.state is ModelState.LOADING else "UNAVAILABLE", reason
    return _READY, "" if version.is_ready else _ON_DEMAND


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
        "memory_usage": _memory_usage(version),
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


def _memory_usage(version: ModelVersion) -> list[dict[str, Any]]:
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
