"""One registered model: its entry, its bounds, its versions, and which of them answers what."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from frameworks.errors import VersionNotFound
from frameworks.generation.types import StepStats
from frameworks.models.identity import ModelIdentity
from frameworks.models.traffic import Share
from frameworks.models.version import ModelState, ModelVersion
from frameworks.models.version_folders import find_versions, served_versions
from frameworks.runtime import ModelEntry
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.steps.worker import StepCounts
from frameworks.types import ModelSpec
from memory.pooled_arrays import PooledArrays

__all__ = ["ModelSlot", "ModelState"]


_COMES_BACK = (ModelState.REGISTERED, ModelState.LOADING)


class ModelSlot:
    """A model's place on the turntable. Owned by the event loop."""

    def __init__(
        self,
        framework: str,
        entry: ModelEntry,
        path: Path,
        limits: BatchLimits,
        ageing_s: float,
        arrays: PooledArrays | None = None,
    ) -> None:
        """`path` is absolute. `ageing_s`: after which a waiting request gains a level of priority. `arrays`: for large
        batches.
        """
        self.framework = framework
        self.entry = entry
        self.path = path
        self.name = entry.name
        self.limits = limits
        self.requests = RequestLimit(f'model "{entry.name}"', entry.max_queue_size, entry.max_concurrent_requests)
        self.identity = ModelIdentity(entry.name, framework, entry, limits, ageing_s, self.requests, Counter(), arrays)
        # Orders to one model (load, unload, delete, roll back, split) are carried out one after the other.
        self.change = asyncio.Lock()
        self.versions: dict[str, ModelVersion] = {}
        """Those that were found, oldest first, loaded or not."""
        self.previous: ModelVersion | None = None
        """The version that answered before the active one: the way back."""
        self._serves_one = entry.version_policy == "latest"
        self.canary: Share | None = None
        self.shadow: Share | None = None
        self.take_versions(find_versions(path))
        self.active = self.versions[self.served[-1]]
        """The version that answers who names none."""

    @property
    def version(self) -> str:
        """The version that answers who names none."""
        return self.active.version

    @property
    def state(self) -> ModelState:
        return self.active.state

    @property
    def reason(self) -> str | None:
        """Why the model is `failed`."""
        return self.active.reason

    @property
    def spec(self) -> ModelSpec | None:
        """What the active version is; None while it is not loaded."""
        return self.active.spec

    @property
    def loads(self) -> int:
        return self.identity.loads.total()

    @property
    def generates(self) -> bool:
        """Whether it generates text, as far as it has been loaded."""
        return self.generated.tokens > 0 or bool(self.step_stats)

    @property
    def batches(self) -> BatchCounts:
        """Those that have run of all its versions."""
        return BatchCounts.total(runs.batches for runs in self.identity.runs.values())

    @property
    def generated(self) -> StepCounts:
        """What all its versions have generated."""
        return StepCounts.total(runs.generated for runs in self.identity.runs.values())

    @property
    def step_stats(self) -> list[StepStats]:
        """How each instance of its loaded versions stands, of a model that generates text."""
        return [stats for version in self.versions.values() for stats in version.step_stats]

    @property
    def memory_bytes(self) -> int:
        """What all loaded versions take."""
        return sum(version.memory_bytes for version in self.versions.values() if version.spec)

    @property
    def seconds_unused(self) -> float | None:
        """Since any version was used last; None if none ever was."""
        unused = [version.seconds_unused for version in self.versions.values()]
        return min((seconds for seconds in unused if seconds is not None), default=None)

    @property
    def queue_depth(self) -> int:
        """Requests that wait: they are decoded, and nothing of them runs yet."""
        return self.requests.waiting

    @property
    def served(self) -> list[str]:
        """The versions, oldest first, that the entry has served; where its word fits none, the one that it wants."""
        found = served_versions(list(self.versions), self.entry.version_policy)
        if found or not isinstance(self.entry.version_policy, tuple):
            return found
        wanted = str(self.entry.version_policy[-1])
        if wanted not in self.versions:
            self.versions[wanted] = ModelVersion(self.identity, wanted, self.path / wanted)
        return [wanted]

    @property
    def is_awaited(self) -> bool:
        """Whether the server is not ready before this start-up model has been loaded for the first time."""
        waiting = self.state in (ModelState.REGISTERED, ModelState.LOADING)
        return self.entry.load == "startup" and waiting and not self.active.waits_for_load

    @property
    def standing(self) -> ModelVersion:
        """The version that answers who names none, where no canary does: of several that are served the newest that is
        ready, if the active one cannot be. One that was evicted comes back instead.
        """
        active = self.active
        if self._serves_one or active.is_ready:
            return active
        if active.state is ModelState.FAILED or self.is_awaited:
            ready = [self.versions[name] for name in self.served if self.versions[name].is_ready]
            return ready[-1] if ready else active
        return active

    @property
    def answering(self) -> list[str]:
        """The versions that may be named, oldest first."""
        names = {self.active.version, *([self.canary.version] if self.canary else [])}
        if self.entry.version_policy != "latest":
            names.update(self.served)
        return sorted(names, key=int)

    def route(self) -> ModelVersion:
        """The version that answers the next request that names none; a canary takes its share of them."""
        canary = self.canary
        if canary is not None and canary.takes_next():
            version = self.versions.get(canary.version)
            # One that has left to make room comes back; one that cannot answer costs nobody an answer.
            if version is not None and (version.is_ready or version.state in _COMES_BACK):
                return version
        return self.standing

    def version_named(self, name: str) -> ModelVersion:
        """The version that a request names. Raises VersionNotFound for one that is not served."""
        if name == self.active.version:
            return self.active
        answering = self.answering
        if name not in answering:
            raise VersionNotFound(self.name, name, answering)
        return self.versions[name]

    def take_versions(self, found: Mapping[str, Path]) -> list[str]:
        """Takes in the version folders that have appeared, forgets those that are gone; which ones are new.

        `found`: as of `find_versions`.
        """
        new = [name for name in found if name not in self.versions]
        for name in new:
            self.versions[name] = ModelVersion(self.identity, name, found[name])
        for name, version in list(self.versions.items()):
            if name in found and version.spec is None:
                version.path = found[name]
            if name not in found and version is not getattr(self, "active", None) and version.spec is None:
                del self.versions[name]
        self.versions = dict(sorted(self.versions.items(), key=lambda item: int(item[0])))
        return new

    def find(self, name: str) -> ModelVersion:
        """A version whose folder was there at the last look, served or not. Raises VersionNotFound."""
        if name not in self.versions:
            raise VersionNotFound(self.name, name, self.versions)
        return self.versions[name]

    def turn_over(self, version: ModelVersion) -> None:
        """From now on this version answers who names none."""
        if version.version != self.active.version:
            self.previous = self.active
        self.versions[version.version] = version
        self.active = version
        for share in (self.canary, self.shadow):
            if share is not None and share.version == version.version:
                self.end(share)

    def end(self, share: Share) -> None:
        """The version gets no share of the traffic any more."""
        if self.canary is share:
            self.canary = None
        if self.shadow is share:
            self.shadow = None

    def is_kept(self, version: ModelVersion) -> bool:
        """Whether a version that is not the active one stays loaded."""
        return version.version in self.answering or (self.shadow is not None and self.shadow.version == version.version)
