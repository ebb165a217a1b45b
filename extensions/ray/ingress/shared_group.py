"""The engine of a version whose replicas are shared with other models: it is loaded in as many of them as it needs."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from extensions.ray.handshake import Address
from extensions.ray.ingress.connections import Connections, ReplicaEngine, Version
from extensions.ray.ingress.group import NO_REPLICA, ReplicaGroup
from extensions.ray.ingress.loaded_versions import LoadedVersions, VersionKey
from extensions.ray.ingress.routing import LeastSeconds
from extensions.ray.running_replicas import RunningReplicas
from frameworks.core.errors import InvalidModel, ModelFailed, OutOfMemory, RoundhouseError, as_failed
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.group_queue import GroupMember

log = structlog.get_logger(__name__)

SPREAD_S = 1.0
"""Queued seconds at each replica that has loaded a version, beyond its load, from which another one loads it."""
_RETRY_S = 0.5


class SharedConnections(Connections):
    """Connect to one replica at a time, when one is wanted: a connection loads the version there."""

    def __init__(
        self,
        settings: EngineSettings,
        counts: RunCounts,
        version: Version,
        running: RunningReplicas,
        replaced_s: float,
        loaded_versions: LoadedVersions,
    ) -> None:
        """`loaded_versions`: of the group."""
        super().__init__(settings, counts, version, running, replaced_s)
        self.key: VersionKey = (version.model, version.name, version.path)
        self.loaded_versions = loaded_versions
        self._is_wanted = False
        self._refusals: dict[str, Exception] = {}
        """Replicas that cannot load the version, of those that run."""
        self._failed: set[str] = set()
        """Replicas of the last failures of another kind: others are tried first."""
        self._retry: asyncio.TimerHandle | None = None
        self._unfollow: Callable[[], None] = lambda: None

    def open(self) -> None:
        super().open()
        self._unfollow = self.loaded_versions.on_changed(self._open_missing)

    def close(self) -> None:
        self._unfollow()
        self._is_wanted = False
        if self._retry is not None:
            self._retry.cancel()
        super().close()

    def want(self) -> None:
        """Load the version in one more replica. Does nothing while one is being opened."""
        if not self._is_wanted:
            self._is_wanted = True
            self._refusals.clear()
            self._open_missing()

    def unused(self) -> list[str]:
        """Return the running replicas without an engine."""
        return [each for each in self._addresses if each not in self._replica_engines]

    def _open_missing(self) -> None:
        """Open the wanted engine, at the best replica."""
        if not self._is_wanted or self._opening or self._retry is not None:
            return
        candidates = [each for each in self.unused() if each not in self._refusals]
        if not candidates and self._refusals and self._addresses:
            self._give_up()
            return
        if not self._failed.issuperset(candidates):
            candidates = [each for each in candidates if each not in self._failed]
        if candidates and (replica := self.loaded_versions.choose(candidates, self.key)) is not None:
            self._start_opening(self._addresses[replica])

    def _give_up(self) -> None:
        """Report the error of the replicas: each of them cannot load the version."""
        self._is_wanted = False
        *_, error = self._refusals.values()
        self._refusals.clear()
        self.on_failed(error)

    async def _open_replica(self, address: Address) -> None:
        """Connect to a replica once; after a failure the choice is made again."""
        with self.loaded_versions.loading(address.replica, self.key):
            error = await self._try_replica(address)
        if error is None:
            return
        if isinstance(error, InvalidModel | OutOfMemory):
            self._refusals[address.replica] = error
            return
        self._failed.add(address.replica)
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _note_opened(self) -> None:
        # Its replica may have to leave at once, and another one is wanted then.
        self._is_wanted = False
        self._failed.clear()

    def _forget_opening(self, replica: str, task: "asyncio.Task[None]") -> None:
        super()._forget_opening(replica, task)
        # Its replica may be gone.
        self._open_missing()

    def _try_again(self) -> None:
        self._retry = None
        self._open_missing()

    def _successors(self, replica_engine: ReplicaEngine) -> Sequence[Address]:
        addresses = {each.replica: each for each in super()._successors(replica_engine)}
        best = self.loaded_versions.choose(addresses, self.key, may_wait=False)
        return [] if best is None else [addresses[best]]


class SharedGroup(ReplicaGroup):
    """Implement Engine. Owned by the event loop. Requests wait here until a replica has loaded the version."""

    _connections: SharedConnections

    def __init__(self, *arguments: Any, load_s: float, on_evicted: Callable[[], None]) -> None:
        """As ReplicaGroup. `load_s`: seconds of a load. `on_evicted`: called when no replica serves the version any
        more, and no request waits.
        """
        self._load_s = load_s
        self._on_evicted = on_evicted
        self._replica_of: dict[GroupMember, str] = {}
        super().__init__(*arguments)
        self._connections.on_failed = self._note_failed

    @property
    def outage(self) -> str | None:
        is_served = self._may_be_empty or self._members or self._connections.num_running
        return None if is_served else NO_REPLICA

    def _new_choice(self) -> LeastSeconds:
        return LeastSeconds(self._others_s)

    def _others_s(self, member: GroupMember) -> float:
        """Return the seconds that the requests for other models will take at the replica of a member."""
        replica = self._replica_of.get(member)
        return 0.0 if replica is None else self._connections.loaded_versions.queued_s(replica, self._connections.key)

    def _ensure_replica(self) -> None:
        if not self._members:
            self._connections.want()
            if not self._connections.num_running:
                super()._ensure_replica()

    def _assign(self, replica_engine: ReplicaEngine, member: GroupMember) -> None:
        super()._assign(replica_engine, member)
        self._replica_of[member] = replica_engine.address.replica

    def _retire_replica(self, replica_engine: ReplicaEngine) -> None:
        member = self._member_of.get(replica_engine)
        if member is not None:
            self._replica_of.pop(member, None)
        super()._retire_replica(replica_engine)
        if len(self._queue):
            self._ensure_replica()

    def _close_replica(self, replica_engine: ReplicaEngine) -> None:
        super()._close_replica(replica_engine)
        self._report_eviction()

    def _report_waiting(self) -> None:
        super()._report_waiting()
        self._spread()

    def _spread(self) -> None:
        """Load the version in another replica where the loaded ones have too much work, and another one has less."""
        if not self._members:
            return
        waits_s = self._choice.waits_s(self._members, len(self._queue))
        if waits_s <= SPREAD_S + self._load_s:
            return
        connections = self._connections
        loaded_versions = connections.loaded_versions
        others = connections.unused()
        if any(
            loaded_versions.has_room(each, connections.key) or loaded_versions.queued_s(each) < waits_s / 2
            for each in others
        ):
            log.info("model is loaded in another replica", model=self._name, queued_s=round(waits_s, 1))
            connections.want()

    def _note_failed(self, error: Exception) -> None:
        """Fail the requests that wait for a load that no replica can do."""
        if self._members:
            return
        log.error("no replica can load the model", model=self._name, reason=str(error))
        self._fail_waiting(lambda: _failure(self._name, error))
        self._report_eviction()

    def _report_eviction(self) -> None:
        if not (self._members or self.engines or len(self._queue) or self.is_dead):
            self._on_evicted()


def _failure(model: str, error: Exception) -> RoundhouseError:
    if isinstance(error, OutOfMemory):
        return OutOfMemory(error.message, error.public)
    return ModelFailed.because(f'model "{model}" failed to load', as_failed(error, "its load"), 1.0)
