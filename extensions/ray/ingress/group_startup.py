"""Open the engine of a version: wait until the first replica has loaded it."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from extensions.ray.ingress.connections import REPLACED_S, Connections, ReplicaEngine, Version
from extensions.ray.ingress.group import RETRY_AFTER_S, ReplicaGroup
from extensions.ray.ingress.loaded_versions import LoadedVersions
from extensions.ray.ingress.shared_group import SharedConnections, SharedGroup
from extensions.ray.running_replicas import RunningReplicas
from frameworks.core.errors import InvalidModel, ModelFailed, OutOfMemory
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.process.link import Started

COLD_START_S = 600.0
"""Limit of the wait for the first replica: a node may have to be started, and a model fetched."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """A Serve deployment of a model, or of models that share it, as an ingress sees it.

    `loaded_versions`: those of each replica, where models share the replicas. `wake`: makes Serve start a replica where
    none runs, and waits for it. `node`: id of the node of this process.
    """

    running: RunningReplicas
    wake: Callable[[], Awaitable[Any]]
    node: str
    may_be_empty: bool = False
    loaded_versions: LoadedVersions | None = None
    cold_start_s: float = COLD_START_S
    replaced_s: float = REPLACED_S


class _Opening:
    """The engines that open before the group takes them over."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.replica_engines: list[ReplicaEngine] = []
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        connections.on_open, connections.on_left, connections.on_failed = self._opened, self._left, self._failed

    async def first(self) -> None:
        """Wait for the engine of a replica. Raises InvalidModel and OutOfMemory where the version cannot be loaded."""
        while not self.replica_engines:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Give up."""
        self._connections.close()
        for replica_engine in self.replica_engines:
            replica_engine.engine.abort("the model was not loaded")

    def _opened(self, replica_engine: ReplicaEngine) -> None:
        self.replica_engines.append(replica_engine)
        self._changed.set()

    def _left(self, replica_engine: ReplicaEngine) -> None:
        self.replica_engines.remove(replica_engine)
        replica_engine.engine.abort("the replica stopped")
        if not self.replica_engines:
            self._connections.want()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, InvalidModel | OutOfMemory):
            self._failure = error
            self._changed.set()


async def open_group(
    deployed: Deployed,
    settings: EngineSettings,
    counts: RunCounts,
    name: str,
    path: str,
    instances: int,
    on_evicted: Callable[[], None] = lambda: None,
) -> tuple[ReplicaGroup, Started]:
    """Return the engine of a version, and the description of its first replica.

    `name`, `path`: of the version. `on_evicted`: as of SharedGroup. Raises InvalidModel and OutOfMemory of a replica
    that cannot load it, and ModelFailed where no replica has started in time.
    """
    connections = _connections(deployed, settings, counts, name, path)
    opening = _Opening(connections)
    connections.open()
    connections.want()
    waking = asyncio.ensure_future(deployed.wake())
    waking.add_done_callback(_ignore_failure)
    try:
        async with asyncio.timeout(deployed.cold_start_s):
            await opening.first()
    except TimeoutError:
        opening.close()
        limit_s = f"{deployed.cold_start_s:.0f} s"
        raise ModelFailed(
            f'model "{settings.name}": no replica has started within {limit_s}; try again later', RETRY_AFTER_S
        ) from None
    except BaseException:
        opening.close()
        raise
    finally:
        waking.cancel()
    # Without a wait: the open engines may stop during a wait.
    replica_engine, *others = opening.replica_engines
    started = replica_engine.engine.started
    assert started is not None, "an open engine has started"
    arguments = (
        settings,
        connections,
        replica_engine,
        instances,
        deployed.wake,
        deployed.cold_start_s,
        deployed.may_be_empty,
    )
    if isinstance(connections, SharedConnections):
        group: ReplicaGroup = SharedGroup(*arguments, load_s=started.loaded.load_s, on_evicted=on_evicted)
    else:
        group = ReplicaGroup(*arguments)
    for each in others:
        connections.on_open(each)
    return group, started


def _connections(deployed: Deployed, settings: EngineSettings, counts: RunCounts, name: str, path: str) -> Connections:
    client, running, replaced_s = client_name(), deployed.running, deployed.replaced_s
    if deployed.loaded_versions is None:
        version = Version(name, path, client, deployed.node)
        return Connections(settings, counts, version, running, replaced_s)
    version = Version(name, path, client, deployed.node, settings.name)
    return SharedConnections(settings, counts, version, running, replaced_s, deployed.loaded_versions)


def _ignore_failure(waking: "asyncio.Future[Any]") -> None:
    if not waking.cancelled():
        waking.exception()


def client_name() -> str:
    """Return the name of this process for the logs of replicas."""
    return f"{socket.gethostname()}:{os.getpid()}"
