"""Hold one version of a model in a worker: its published state, and its engine."""

import asyncio
import os
from pathlib import Path

from frameworks.core.errors import as_failed
from frameworks.engine.process.wire.serialization import error_from_plain
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.version import ModelState, ModelVersion
from frameworks.replicas.messages import VersionState


class ReplicaVersion(ModelVersion):
    """A version whose loads the supervisor decides. Owned by the event loop."""

    def __init__(self, model: ModelIdentity, published: VersionState) -> None:
        super().__init__(model, published.version, Path(os.fsdecode(published.path)))
        self.published = published
        """The state that was published last."""
        self._change: asyncio.Future[None] | None = None

    @property
    def ready_serving(self) -> int:
        """The number of the load that is ready at the supervisor, perhaps before it is here; 0 for none."""
        return self.published.serving if self.published.state == ModelState.READY else 0

    def enter(self, published: VersionState) -> None:
        """Enter the published state of a version that has no engine here."""
        self.phase, self.next_state = ModelState(published.state), ModelState(published.next_state)
        self.waits_for_load = published.waits_for_load
        failure = published.failure
        error = None if failure is None else as_failed(error_from_plain(failure), "its load")
        self.failures.follow(error, published.retry_in_s)

    def note_change(self) -> None:
        """Wake the requests that wait for a change."""
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)

    async def change(self) -> None:
        """Wait until the version has another state or engine, or another object has replaced it."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._change)
