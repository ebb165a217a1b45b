"""The engine of a version that the workers of a server share, as the supervisor has it."""

import asyncio
import os
from collections.abc import Callable
from functools import partial

import structlog

from frameworks.core.backoff import delay_after
from frameworks.core.devices import Device
from frameworks.core.errors import ModelFailed, RoundhouseError
from frameworks.engine.contract import Engine
from frameworks.engine.group import EngineGroup
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss, Started
from frameworks.generation.sequences import StepStats
from frameworks.models.replicas.changes import Changes
from frameworks.models.replicas.messages import (
    Abandon,
    Connect,
    Connected,
    EndModelRequests,
    KillProcess,
    Prepare,
    ProcessLost,
    VersionUse,
)
from frameworks.models.replicas.peers import ConnectionGrants, Peer, PeerLoad, Peers
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.sequences.state_store import SequenceUse

log = structlog.get_logger(__name__)


class SharedEngine:
    """Implement Engine. Owned by the event loop.

    It has the engine that was loaded here, and follows the engines of the workers: they run the requests.
    """

    def __init__(
        self,
        version: ModelVersion,
        engine: Engine,
        serving: int,
        device: Device,
        peers: Peers,
        changes: Changes,
        on_closed: Callable[["SharedEngine"], None],
    ) -> None:
        """`engine`: loaded here; a process, or a small model on `device`. `serving`: number of the load."""
        self._on_closed = on_closed
        self.version = version
        self.serving = serving
        self._engine = engine
        self._device = device
        self._peers = peers
        self._changes = changes
        self.model = engine.model
        self.submit, self.answer, self.generate = engine.submit, engine.answer, engine.generate
        self.lease_body = engine.lease_body
        self.compute_now = engine.compute_now
        self.has_ended_requests = False
        self._processes = _processes_of(engine)
        self._connects = [ConnectionGrants(partial(_is_up, process)) for process in self._processes]
        for index, process in enumerate(self._processes):
            process.is_shared = True
            process.on_started = partial(self._started, index)
            process.on_lost = partial(self._lost, index)
            process.on_start_failed = partial(self._start_failed, index)

    @property
    def is_dead(self) -> bool:
        return self._engine.is_dead

    @property
    def outage(self) -> str | None:
        return self._engine.outage

    @property
    def is_running(self) -> bool:
        return self._engine.is_running

    @property
    def references(self) -> int:
        loads = (peer.loads.get(self.serving) for peer in self._peers.connected.values())
        return sum(load.references for load in loads if load is not None)

    @property
    def stats(self) -> list[StepStats]:
        return self._engine.stats

    @property
    def sequences(self) -> SequenceUse:
        return self._engine.sequences

    @property
    def is_ready(self) -> bool:
        """Whether requests may use this load."""
        return self.version.phase is ModelState.READY and self.version.serving_id == self.serving

    async def prepared(self) -> None:
        """Wait until every worker has the engine. Raises the error of a worker that cannot get it."""
        self._changes.flush()
        self.prepare_missing()
        await self._peers.signal.until(self._is_prepared)

    def prepare_missing(self) -> None:
        """Let the workers that have never had the engine, or have closed it, get it."""
        for peer in self._peers.connected.values():
            if self.serving not in peer.loads:
                self.prepare(peer)

    def prepare(self, peer: Peer) -> None:
        """Let a worker get the engine."""
        load = peer.loads.setdefault(self.serving, PeerLoad())
        if load.is_held or load.prepare is not None:
            return
        if load.retry is not None:
            load.retry.cancel()
        version = self.version
        load.prepare = self._peers.send(
            peer,
            lambda number: Prepare(
                number,
                version.model.name,
                version.version,
                os.fsencode(version.path),
                self.serving,
                not self._processes,
                self._device,
                len(self._processes),
            ),
        )

    def has_prepared(self, peer: Peer, error: RoundhouseError | None) -> None:
        """Note the outcome of a Prepare. A worker that serves others tries again later."""
        load = peer.loads[self.serving]
        load.prepare, load.failure, load.is_held = None, error, error is None
        load.failures = 0 if error is None else load.failures + 1
        if error is not None:
            log.error("worker has no engine", worker=peer.link.number, version=str(self.version), reason=error.message)
            load.retry = asyncio.get_running_loop().call_later(delay_after(load.failures), self._retry, peer)
        self._peers.signal.notify()

    def has_drained(self, peer: Peer) -> None:
        """Note that a worker has closed its engine."""
        peer.forget(self.serving)
        self.has_left(peer)
        self._peers.signal.notify()

    def note_use(self, peer: Peer, use: VersionUse) -> None:
        """Note the references of a worker's requests."""
        load = peer.loads.get(self.serving)
        if load is not None:
            load.references = use.references
        if use.last_used_s is not None:
            self.version.last_used_s = max(self.version.last_used_s or use.last_used_s, use.last_used_s)

    def has_left(self, peer: Peer) -> None:
        """Release the connections of a worker that is lost, or needs the model no longer."""
        for connects in self._connects:
            connects.left(peer)

    async def ready_at(self, peer: Peer) -> None:
        """Wait until the worker has the engine and knows that it is ready, or until it is not ready any more.

        Raises the error of a worker that cannot get it.
        """
        if self.serving not in peer.loads or peer.loads[self.serving].failure is not None:
            self.prepare(peer)
        await self._peers.signal.until(lambda: not self.is_ready or self._is_settled(peer))
        if self.is_ready:
            await self._changes.applied([peer])

    async def connect(self, peer: Peer, request: Connect) -> Connected:
        """Connect a worker to a process. Raises ModelFailed."""
        if not 0 <= request.index < len(self._processes):
            raise ModelFailed(f"{self.version} has no process {request.index}")
        process, connects = self._processes[request.index], self._connects[request.index]
        if process.outage is not None and not connects.was_connected(peer):
            raise ModelFailed(process.outage, process.retry_after_s())  # it is prepared when the process serves again
        await connects.granted(peer, request.suspects)
        started = process.started
        assert started is not None, "a connection is granted while the process serves"
        descriptors = process.attach()
        try:
            peer.link.descriptors.send(request.id, descriptors)
        finally:
            for each in descriptors:
                os.close(each)
        loaded = started.loaded
        return Connected(request.id, process.model.spec, loaded.memory_bytes, loaded.load_s)

    def settled(self, peer: Peer, index: int) -> None:
        """Note that all suspects of a worker at a process have an outcome."""
        if 0 <= index < len(self._connects):
            self._connects[index].settled(peer)

    def kill(self, order: KillProcess) -> None:
        """End a process, which has broken the protocol."""
        process = self._processes[order.index] if 0 <= order.index < len(self._processes) else None
        if process is not None and process.started is not None and process.outage is None:
            process.started.link.kill(order.label, order.reason)

    async def drained(self) -> None:
        self._changes.flush()
        self._abandon(every=False)
        await self._peers.signal.until(lambda: not any(self.serving in peer.loads for peer in self._connected))

    def end_requests(self) -> None:
        self.has_ended_requests = True
        for peer in self._connected:
            if self.serving in peer.loads:
                peer.link.send(EndModelRequests(self.serving))

    async def close(self) -> None:
        self._end()
        await self._engine.close()

    def abort(self, message: str) -> None:
        self._abandon(every=True)
        self._end()
        self._engine.abort(message)

    def check_integrity(self) -> None:
        self._engine.check_integrity()

    @property
    def _connected(self) -> list[Peer]:
        return list(self._peers.connected.values())

    def _is_prepared(self) -> bool:
        loads = [peer.loads.get(self.serving) for peer in self._connected]
        for load in loads:
            if load is not None and load.failure is not None:
                raise load.failure
        return all(load is not None and load.is_held for load in loads)

    def _is_settled(self, peer: Peer) -> bool:
        load = peer.loads.get(self.serving)
        if load is None:
            return not self._peers.is_connected(peer)
        if load.prepare is None and load.failure is not None:
            raise self._refusal(load.failure)
        return load.is_held

    def _refusal(self, failure: RoundhouseError) -> RoundhouseError:
        """Return the error of a request whose worker cannot get the engine."""
        if not isinstance(failure, ModelFailed):
            return failure
        message, public = (
            f'model "{self.version.model.name}" failed: {each}; try again later'
            for each in (failure.message, failure.public)
        )
        return ModelFailed(message, failure.retry_after_s, public)

    def _retry(self, peer: Peer) -> None:
        if self.is_ready and self._peers.is_connected(peer) and self._engine.outage is None:
            self.prepare(peer)

    def _end(self) -> None:
        for connects in self._connects:
            connects.close()
        self._on_closed(self)

    def _abandon(self, every: bool) -> None:
        """Let workers close the engine that was not ready for them. `every`: also those that were sent it as ready."""
        for peer in self._connected:
            load = peer.loads.get(self.serving)
            if load is not None and (every or not load.is_shown):
                peer.link.send(Abandon(self.serving))
                peer.forget(self.serving)
                self.has_left(peer)
        self._peers.signal.notify()

    def _started(self, index: int, _: Started) -> None:
        self._connects[index].started()
        for peer in self._connected:
            load = peer.loads.get(self.serving)
            if load is not None and load.failure is not None:
                self._retry(peer)

    def _lost(self, index: int, loss: Loss) -> None:
        self._connects[index].lost()
        for peer in self._connected:
            if self.serving in peer.loads:
                peer.link.send(ProcessLost(self.serving, index, loss.label, loss.message))

    def _start_failed(self, index: int, reason: str) -> None:
        self._connects[index].fail(ModelFailed(reason, self._processes[index].retry_after_s()))


def _processes_of(engine: Engine) -> list[ProcessEngine]:
    """Return the processes of a model; none for one that is loaded in every worker."""
    if isinstance(engine, EngineGroup):
        return engine.engines
    return [engine] if isinstance(engine, ProcessEngine) else []


def _is_up(process: ProcessEngine) -> bool:
    return process.outage is None
