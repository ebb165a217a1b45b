"""What the protocol tells and orders beside inference, for REST and gRPC alike: in dicts of Triton's JSON form, which
are the messages of its GRPCInferenceService too.
"""

from collections.abc import Mapping
from typing import Any

from app.admin.models import as_failed_model
from app.admin.open_inference.configuration import model_configuration
from app.admin.open_inference.metadata import Described, model_metadata
from app.admin.open_inference.repository import check_load_parameters, repository_index
from app.admin.open_inference.statistics import counted_versions, version_statistics
from app.inference.pipeline import Pipeline
from frameworks.errors import ModelLoading, RoundhouseError
from frameworks.models.slot import ModelSlot
from frameworks.models.version import ModelVersion


class Management:
    """Owned by the event loop. Wherever a version may be named, "" is that which answers who names none."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._journey = pipeline
        self._manager = pipeline.manager
        self._observer = pipeline.observer
        self._lifecycle = pipeline.lifecycle

    def why_not_ready(self) -> RoundhouseError | None:
        """What keeps the server from being ready; None if it is."""
        try:
            self._lifecycle.check_accepting()
        except RoundhouseError as error:
            return error
        waits_for = self._lifecycle.waits_for()
        return ModelLoading(f"the server is not ready before {', '.join(waits_for)}; ask again") if waits_for else None

    def why_model_is_not_ready(self, name: str, version: str = "") -> RoundhouseError | None:
        """What keeps a model from answering: it is unknown, unloaded, has failed or is not loaded for the first time.
        None if a request would be answered, perhaps after it has waited for a load: a lazy model, or one that has left
        to make room, is ready.
        """
        try:
            self._lifecycle.check_accepting()
            self._find(name, version)[1].described()
        except RoundhouseError as error:
            return error
        return None

    async def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """As ModelMetadataResponse. A model that was never loaded is brought in, as by a request; of one that has left
        to make room it tells what it was. Raises what keeps it from answering.
        """
        described = await self._describe(name, version)
        return model_metadata(described, [version] if version else described.slot.answering)

    async def model_configuration(self, name: str, version: str = "") -> dict[str, Any]:
        """As ModelConfig; else as `model_metadata`."""
        described = await self._describe(name, version)
        return model_configuration(described, self._journey.bounds.default_timeout_ms)

    def model_statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """As ModelStatisticsResponse: of a version, of all of a model's, or of all. Raises ModelNotFound,
        VersionNotFound.
        """
        if name and version:
            slot = self._manager.slot(name)
            counted = [(slot, slot.find(version))]
        else:
            slots = [self._manager.slot(name)] if name else self._manager.slots
            counted = [(slot, each) for slot in slots for each in counted_versions(slot, self._observer)]
        return {"model_stats": [version_statistics(slot, each, self._observer) for slot, each in counted]}

    def repository_index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """As the `models` of RepositoryIndexResponse."""
        return repository_index(self._manager.slots, ready_only)

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Loads a model, with a version that has appeared; returns when it is ready. Raises NotSupported, and as
        MLFrameworkManager.load; what its files are to blame for is ModelFailed.
        """
        self._lifecycle.check_accepting()
        self._manager.slot(name)
        check_load_parameters(parameters)
        with as_failed_model(name):
            await self._manager.load(name)

    async def unload(self, name: str) -> None:
        """Unloads a model; returns when the requests in flight have been answered. Raises ModelNotFound."""
        await self._manager.unload(name)

    def _find(self, name: str, version: str) -> tuple[ModelSlot, ModelVersion]:
        slot = self._manager.slot(name)
        return slot, slot.version_named(version) if version else slot.default_version

    async def _describe(self, name: str, version: str) -> Described:
        while True:
            slot, found = self._find(name, version)
            spec = found.described()
            if spec is not None:
                return Described(slot, found, spec)
            permit = self._journey.new_permit()
            try:
                permit.queue(slot.requests)
                await self._manager.wait_for(found, permit)
            finally:
                permit.release()
