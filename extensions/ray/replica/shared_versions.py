"""A version in a replica that several models share: its requests come from clients, and it may be evicted."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from extensions.ray.replica.clients import HostedVersion, ReplicaClient
from extensions.ray.replica.metered_engine import MeteredEngine
from frameworks.engine.local import LocalEngine
from frameworks.engine.process.wire.messages import Leave, VersionReport
from frameworks.engine.threads import EngineThreads
from frameworks.generation.sequences import StepStats
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.sequences.state_store import SequenceUse

HOLD_S = 1.0
"""A version that was just loaded is kept for so long until its first request: the one that it was loaded for."""


class SharedHost(MeteredEngine):
    """The engine of one load of a version, which notes when the version is used."""

    def __init__(self, managed: ModelVersion, threads: EngineThreads, died: Callable[[], None]) -> None:
        """`died`: as of HostedEngine."""
        super().__init__(threads, lambda: None, died)
        self._managed = managed
        self.was_used = asyncio.Event()

    def note_use(self) -> None:
        self._managed.touch()
        if not self.was_used.is_set():
            self.was_used.set()


class SharedVersion(HostedVersion):
    """A version, and its state in the residency of the replica. `reply` is None while it is not loaded."""

    host: SharedHost

    def __init__(self, managed: ModelVersion, path: str, state: object, host: SharedHost) -> None:
        """`path`: as clients name it. `state`: of its files."""
        super().__init__(managed.version, path, state, host)
        self.managed = managed
        self.left = asyncio.Event()
        """Set after the end of a client."""

    @property
    def waiting(self) -> list[ReplicaClient]:
        """The clients that wait for its load."""
        return [client for client in self.clients if not client.is_served]

    def describe(self) -> VersionReport | None:
        """Return what ingresses have to know; None where it is neither loaded nor being loaded."""
        if self.reply is None and self.task is None:
            return None
        size = 0 if self.reply is None else self.managed.memory_bytes
        return VersionReport(self.managed.model.name, self.name, self.path, size, round(self.host.queued_s, 2))


class ClientsEngine:
    """Implement Engine over the engine of a load, whose requests come from clients. Owned by the event loop."""

    outage = None

    def __init__(self, version: SharedVersion, engine: LocalEngine) -> None:
        """`engine`: that of the host of the version."""
        self._version = version
        self._host = version.host
        self._engine = engine
        self._loaded_s = time.monotonic()
        self.model = engine.model
        self.submit, self.answer, self.generate = engine.submit, engine.answer, engine.generate
        self.lease_body, self.compute_now = engine.lease_body, engine.compute_now

    @property
    def is_dead(self) -> bool:
        return self._engine.is_dead

    @property
    def is_running(self) -> bool:
        return self._engine.is_running

    @property
    def has_ended_requests(self) -> bool:
        return self._engine.has_ended_requests

    @property
    def stats(self) -> list[StepStats]:
        return self._engine.stats

    @property
    def sequences(self) -> SequenceUse:
        return self._engine.sequences

    @property
    def references(self) -> int:
        """Requests of all clients, also those that wait there for room."""
        return sum(len(client.calls) + client.waiting for client in self._host.clients)

    async def drained(self) -> None:
        """Let the clients leave, after the first request of the load."""
        version, host = self._version, self._host
        if host.clients:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._loaded_s + HOLD_S - time.monotonic()):
                    await host.was_used.wait()
        # Clients that connect from now on wait for the next load.
        version.reply = None
        for client in host.clients:
            if client.sender.is_open:
                client.sender.send(Leave())
        while host.clients:
            version.left.clear()
            await version.left.wait()

    async def close(self) -> None:
        self._host.stop_reports()
        await self._engine.close()
        self._host.abort()

    def end_requests(self) -> None:
        self._engine.end_requests()

    def abort(self, message: str) -> None:
        self._engine.abort(message)
        self._host.abort()

    def check_integrity(self) -> None:
        self._engine.check_integrity()
