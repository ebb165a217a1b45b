"""Load pipelines: get the specs of their models, check their types, and start their engines."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from extensions.pipelines.checker import check_pipeline
from extensions.pipelines.engine import PipelineEngine
from extensions.pipelines.settings import FRAMEWORK, PipelineModelEntry
from frameworks.core.cpus import usable_cpus
from frameworks.core.errors import EvictionNeeded, InvalidModel, ModelFailed, OutOfMemory, RoundhouseError
from frameworks.core.vector_search import NamedCollections
from frameworks.models.residency.subrequests import SubRequests
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.types import ModelSpec


class PipelineLoader:
    """Implement CompositeLoader. Owned by the event loop."""

    def __init__(self, slots: Mapping[str, ModelSlot], parts: SubRequests, offers: Mapping[type[Any], Any]) -> None:
        """`slots`: all models by name and alias. `parts`: sends the requests of steps to their models.

        `offers`: has NamedCollections before the first load, where the server has collections.
        """
        self._slots = slots
        self._parts = parts
        self._offers = offers
        # For decoded images, functions and long arithmetic. Threads start when they are first needed.
        self._threads = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="steps")

    async def load(self, version: ModelVersion) -> PipelineEngine:
        """Return the engine of a pipeline. Models of it that are not loaded are loaded first.

        Raises InvalidModel with all faults of its types; the errors of a model's load, with the step instead of its
        name.
        """
        entry = version.model.entry
        assert isinstance(entry, PipelineModelEntry), "only pipelines are loaded here"
        pipeline = entry.pipeline
        slots = self._slots
        specs: dict[str, ModelSpec] = {}
        for step in pipeline.steps:
            if step.model is not None and step.model in slots and step.model not in specs:
                specs[step.model] = await self._parts.spec(step.model, f'step "{step.name}"')
        pipelines = [name for name, slot in slots.items() if slot.framework == FRAMEWORK]
        collections: NamedCollections | None = self._offers.get(NamedCollections)
        dimensions = {} if collections is None else collections.dimensions
        typed, faults = check_pipeline(pipeline, list(slots), specs, pipelines, dimensions)
        if typed is None:
            raise InvalidModel(f'pipeline "{pipeline.name}": {"; ".join(map(str, faults))}')
        return PipelineEngine(typed, self._parts, self._threads, collections)

    def close(self) -> None:
        """Start no more slow steps; do not wait for the current ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check_at_start(self, version: ModelVersion) -> None:
        """Check that a pipeline can be loaded at the start without a load of its models.

        Raises EvictionNeeded where a model is loaded by its first request: so is the pipeline. Raises ModelFailed or
        OutOfMemory where a model failed to load, also if its next load is due: that load might evict others.
        """
        entry, slots = version.model.entry, self._slots
        assert isinstance(entry, PipelineModelEntry)
        for step in entry.pipeline.steps:
            if step.model is None or step.model not in slots:
                continue
            slot, name = slots[step.model], f'step "{step.name}"'
            failure = _load_failure(slot.default_version)
            if failure is not None:
                raise self._parts.named(failure, step.model, name)
            if _is_lazy(slot):
                raise EvictionNeeded(f"{name}: its model is loaded by the first request, and the pipeline too")


def _load_failure(version: ModelVersion) -> RoundhouseError | None:
    """Return the error of a version that failed to load; None for another version."""
    failure = version.failures.last
    if version.phase is not ModelState.FAILED or failure is None:
        return None
    return failure if isinstance(failure, OutOfMemory) else ModelFailed.because(f"{version} failed to load", failure)


def _is_lazy(slot: ModelSlot) -> bool:
    """Whether a model is not loaded, and loaded by its next request."""
    return slot.spec is None and slot.active.waits_for_load and slot.reason is None
