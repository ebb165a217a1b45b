"""Hold one registered model: its versions, and the version that answers each request."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import VersionNotFound
from frameworks.core.settings.adapters import AdapterEntry
from frameworks.core.settings.entries import Isolation, OnnxModelEntry
from frameworks.generation.sequences import StepStats
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version import ModelVersion
from frameworks.models.versions.version_folders import ONLY_VERSION, find_versions, served_versions
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.types import ModelSpec

_LOADABLE = (ModelState.REGISTERED, ModelState.LOADING)


class ModelSlot:
    """A registered model. Owned by the event loop."""

    def __init__(self, identity: ModelIdentity, path: Path, found: Mapping[str, Path] | None = None) -> None:
        """`path` is absolute. `found`: its versions; None scans the folder. A model with an address has one version."""
        self.identity = identity
        self.framework = identity.framework
        self.entry = identity.entry
        self.path = path
        self.name = identity.name
        self.limits = identity.limits
        self.requests = identity.requests
        # Commands to one model (load, unload, delete, roll back, split) run one after the other.
        self.lock = asyncio.Lock()
        self.versions: dict[str, ModelVersion] = {}
        """All versions with a folder, oldest first, loaded or not."""
        self.previous: ModelVersion | None = None
        """The version that was active before, for a rollback."""
        self.serves_latest = self.entry.version_policy == "latest"
        """Whether one version answers all requests without a version, apart from a canary's share."""
        self.canary: Share | None = None
        self.shadow: Share | None = None
        if found is None:
            found = find_versions(path) if self.has_folders else {ONLY_VERSION: path}
        self.update_versions(found)
        self.active = self.versions[self.served[-1]]
        """The version that answers requests without a version."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return self.entry.names

    @property
    def has_address(self) -> bool:
        """Whether its files are fetched before each load."""
        return isinstance(self.entry.path, SourceAddress)

    @property
    def has_folders(self) -> bool:
        """Whether its versions are folders of a path; else it has one version."""
        return not self.has_address and not self.identity.is_composite

    @property
    def has_state(self) -> bool:
        """Whether its requests are steps of sequences."""
        return isinstance(self.entry, OnnxModelEntry) and self.entry.state is not None

    @property
    def version(self) -> str:
        """The name of the active version."""
        return self.active.version

    @property
    def state(self) -> ModelState:
        return self.active.state

    @property
    def isolation(self) -> Isolation:
        """Where the active version runs."""
        return self.active.isolation

    @property
    def reason(self) -> str | None:
        """The reason of the state `failed`."""
        return self.active.reason

    @property
    def public_reason(self) -> str | None:
        """As ModelVersion.public_reason."""
        return self.active.public_reason

    @property
    def spec(self) -> ModelSpec | None:
        """The spec of the active version; None while it is not loaded."""
        return self.active.spec

    @property
    def adapters(self) -> list[AdapterEntry]:
        """The adapters of the model, loaded or not."""
        return list(self.identity.adapters.values())

    @property
    def loads(self) -> int:
        return self.identity.loads.total()

    @property
    def downloaded_bytes(self) -> int:
        """The bytes received from its address since the start of the server."""
        return self.identity.downloads.received_bytes.total()

    @property
    def generates(self) -> bool:
        """Whether the model generates text; False while this is unknown, before its first load."""
        return self.generated.tokens > 0 or bool(self.step_stats)

    @property
    def batches(self) -> BatchCounts:
        """The batches of all versions."""
        return BatchCounts.total(runs.batches for runs in self.identity.runs.values())

    @property
    def generated(self) -> StepCounts:
        """The steps of all versions."""
        return StepCounts.total(runs.generated for runs in self.identity.runs.values())

    @property
    def restarts(self) -> Counter[str]:
        """The losses of processes of all versions, by reason."""
        return sum((runs.restarts for runs in self.identity.runs.values()), start=Counter())

    @property
    def step_stats(self) -> list[StepStats]:
        """The stats of each loaded instance of a generating model; empty for other models."""
        return [stats for version in self.versions.values() for stats in version.step_stats]

    @property
    def memory_bytes(self) -> int:
        """The memory of all loaded versions, also in the replicas of a cluster."""
        return sum(version.total_bytes for version in self.versions.values())

    @property
    def seconds_unused(self) -> float | None:
        """Seconds since the last use of any version; None before the first use."""
        unused = [version.seconds_unused for version in self.versions.values()]
        return min((seconds for seconds in unused if seconds is not None), default=None)

    @property
    def queue_depth(self) -> int:
        """The number of queue slots that requests hold; a request for texts holds one for each of them."""
        return self.requests.waiting

    def requests_of(self, tenant: str) -> tuple[int, int]:
        """Return the number of a tenant's requests in flight, and of the queue slots that they hold."""
        return self.requests_by_tenant().get(tenant, (0, 0))

    def requests_by_tenant(self) -> dict[str, tuple[int, int]]:
        """Return what `requests_of` does, by the names of the tenants that have requests in flight."""
        found: dict[str, tuple[int, int]] = {}
        for version in self.versions.values():
            for permit in version.permits():
                inflight, slots = found.get(permit.tenant.name, (0, 0))
                found[permit.tenant.name] = inflight + 1, slots + permit.slots
        return found

    @property
    def served(self) -> list[str]:
        """The versions, oldest first, that version_policy selects; its last version where no folder matches."""
        found = served_versions(list(self.versions), self.entry.version_policy)
        if found or not isinstance(self.entry.version_policy, tuple):
            return found
        wanted = str(self.entry.version_policy[-1])
        if wanted not in self.versions:
            self.versions[wanted] = ModelVersion(self.identity, wanted, self.path / wanted)
        return [wanted]

    @property
    def is_awaited(self) -> bool:
        """Whether the server is not ready because this start-up model has not been loaded yet."""
        waiting = self.state in (ModelState.REGISTERED, ModelState.LOADING)
        return self.entry.load == "startup" and waiting and not self.active.waits_for_load

    @property
    def default_version(self) -> ModelVersion:
        """The version that answers requests without a version, apart from a canary's share.

        Where the active version failed and several are served, this is the newest ready one. An evicted active version
        is loaded again instead.
        """
        active = self.active
        if self.serves_latest or active.is_ready:
            return active
        if active.state is ModelState.FAILED or self.is_awaited:
            ready = [self.versions[name] for name in self.served if self.versions[name].is_ready]
            return ready[-1] if ready else active
        return active

    @property
    def answering(self) -> list[str]:
        """The versions that a request may name, oldest first."""
        names = {self.active.version, *([self.canary.version] if self.canary else [])}
        if self.entry.version_policy != "latest":
            names.update(self.served)
        return sorted(names, key=int)

    def route(self) -> ModelVersion:
        """Return the version for the next request without a version, which may be the canary."""
        canary = self.canary
        if canary is not None and canary.takes_next():
            version = self.versions.get(canary.version)
            # An evicted canary is loaded again. A canary that cannot answer loses its share to the default version.
            if version is not None and (version.is_ready or version.state in _LOADABLE):
                return version
        return self.default_version

    def version_named(self, name: str) -> ModelVersion:
        """Return the version that a request names. Raises VersionNotFound for a version that is not served."""
        if name == self.active.version:
            return self.active
        answering = self.answering
        if name not in answering:
            raise VersionNotFound(self.name, name, answering)
        return self.versions[name]

    def update_versions(self, found: Mapping[str, Path]) -> list[str]:
        """Add new version folders and remove deleted ones, as `find_versions` found them; return the new versions."""
        before = list(self.versions)
        new = [name for name in found if name not in self.versions]
        for name in new:
            self.versions[name] = ModelVersion(self.identity, name, found[name])
        for name, version in list(self.versions.items()):
            if name in found and version.spec is None:
                version.path = found[name]
            if name not in found and version is not getattr(self, "active", None) and version.spec is None:
                del self.versions[name]
        self.versions = dict(sorted(self.versions.items(), key=lambda item: int(item[0])))
        if before and list(self.versions) != before:
            self.identity.changed()
        return new

    def find(self, name: str) -> ModelVersion:
        """Return a version that had a folder at the last scan, served or not. Raises VersionNotFound."""
        if name not in self.versions:
            raise VersionNotFound(self.name, name, self.versions)
        return self.versions[name]

    def activate(self, version: ModelVersion) -> None:
        """Send requests without a version to this version from now on."""
        if version.version != self.active.version:
            self.previous = self.active
        self.versions[version.version] = version
        self.active = version
        for share in (self.canary, self.shadow):
            if share is not None and share.version == version.version:
                self.end_share(share)
        self.identity.changed()

    def replace(self, version: ModelVersion) -> None:
        """Send requests for the version of this name to this load of it from now on."""
        self.versions[version.version] = version
        self.identity.changed()

    def set_share(self, kind: str, share: Share | None) -> None:
        """Replace a share of the traffic. `kind`: `canary` or `shadow`."""
        if kind == "canary":
            self.canary = share
        else:
            self.shadow = share
        self.identity.changed()

    def end_share(self, share: Share) -> None:
        """Remove a share of the traffic."""
        if self.canary is share:
            self.set_share("canary", None)
        if self.shadow is share:
            self.set_share("shadow", None)

    def is_kept(self, version: ModelVersion) -> bool:
        """Whether a version that is not active stays loaded."""
        return version.version in self.answering or (self.shadow is not None and self.shadow.version == version.version)
