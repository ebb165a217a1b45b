"""Share the models of the supervisor with its workers: their state, their engines, and the loads that requests need."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from frameworks.core.backoff import Elapsed
from frameworks.core.errors import ModelFailed, RoundhouseError, as_failed
from frameworks.engine.contract import Engine
from frameworks.engine.process.client.poison_requests import MAX_POISON_REQUESTS, REFUSED_S
from frameworks.engine.process.wire.counts import add_counts
from frameworks.engine.process.wire.messages import Counts
from frameworks.engine.process.wire.serialization import error_from_plain
from frameworks.models.replicas.changes import Changes
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.messages import (
    Applied,
    Connect,
    Connected,
    Drained,
    KillProcess,
    LoadEnded,
    LoadForRequest,
    LocalCounts,
    Poisonous,
    PrepareFailed,
    Settled,
    StateSent,
    Uses,
)
from frameworks.models.replicas.peers import Peer, Peers
from frameworks.models.replicas.shared_engine import SharedEngine
from frameworks.models.residency.loader import Loaded
from frameworks.models.residency.residency import ModelResidency
from frameworks.models.versions.contract import ServedModels, slot_of
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.admission import Permit, RequestLimit


class Publisher:
    """The manager decides; the workers apply. Owned by the event loop."""

    def __init__(
        self,
        models: ServedModels,
        residency: ModelResidency,
        on_changed: Callable[[Callable[[str], None]], None],
        workers: Workers,
    ) -> None:
        """Make it before a worker connects, and before a model is loaded. `on_changed`: as of the manager."""
        self._models = models
        self._residency = residency
        self._peers = Peers()
        self._changes = Changes(models, self._peers, self._prepare_missing)
        self._engines: dict[int, SharedEngine] = {}
        # For the requests of workers that wait for a load.
        self._requests = RequestLimit("the supervisor", None, None)
        self._poisonous: deque[tuple[Elapsed, Poisonous]] = deque(maxlen=MAX_POISON_REQUESTS)
        on_changed(self._changes.note)
        residency.start_engine = self._share
        workers.on_connect(self._register)
        workers.on_joined(self._join)
        workers.on_left(self._leave)

    async def applied(self) -> None:
        """Wait until all workers have applied all changes of models before the call."""
        await self._changes.applied()

    async def _share(self, version: ModelVersion, loaded: Loaded, serving: int) -> Engine:
        """Return the engine of a loaded version when all workers have it. As StartEngine."""
        inner = loaded.start(version)
        engine = SharedEngine(version, inner, serving, loaded.device, self._peers, self._changes, self._forget)
        self._engines[serving] = engine
        try:
            await engine.prepared()
        except BaseException:
            engine.abort("the model is not used")
            raise
        return engine

    def _forget(self, engine: SharedEngine) -> None:
        self._engines.pop(engine.serving, None)

    def _prepare_missing(self, name: str) -> None:
        """Let workers get the engines of a model that they have drained, and that is ready again."""
        for engine in self._engines.values():
            if engine.version.model.name == name and self._is_current(engine):
                engine.prepare_missing()

    def _is_current(self, engine: SharedEngine) -> bool:
        """Whether requests may use a load: it is ready, and no other load has replaced it."""
        return engine.is_ready and self._is_known(engine.version)

    def _is_known(self, version: ModelVersion) -> bool:
        """Whether requests are routed to this object: no other one has replaced it."""
        slot = slot_of(self._models, version.model.name)
        return slot is not None and slot.versions.get(version.version) is version

    def _register(self, link: ControlLink) -> None:
        """Handle the messages of a new worker."""
        link.handle(Applied, partial(self._note_applied, link))
        link.handle(PrepareFailed, partial(self._note_prepare_failed, link))
        link.handle(Drained, partial(self._note_drained, link))
        link.handle(Uses, partial(self._note_uses, link))
        link.handle(LocalCounts, self._add_counts)
        link.handle(Settled, partial(self._note_settled, link))
        link.handle(KillProcess, self._kill_engine)
        link.handle(Poisonous, partial(self._relay, link))
        link.answer(Connect, partial(self._connect, link))
        link.answer(LoadForRequest, partial(self._load_for_request, link))

    def _join(self, link: ControlLink) -> None:
        """Send a new worker the state of all models, then let it get the engines that others have."""
        self._changes.flush()
        peer = self._peers.connected[link] = Peer(link)
        for slot in self._models.slots:
            self._changes.show(peer, slot.name)
        for engine in self._engines.values():
            if engine.version.phase is ModelState.LOADING or self._is_current(engine):
                engine.prepare(peer)
        for at, poisonous in self._poisonous:
            if at.seconds() < REFUSED_S:
                link.send(poisonous)
        link.start(self._complete_state(peer))

    async def _complete_state(self, peer: Peer) -> None:
        await self._changes.applied([peer])
        peer.link.send(StateSent())

    def _leave(self, link: ControlLink) -> None:
        """Release all that a lost worker held."""
        peer = self._peers.connected.pop(link, None)
        if peer is None:
            return
        for serving in list(peer.loads):
            peer.forget(serving)
        for engine in self._engines.values():
            engine.has_left(peer)
        self._peers.signal.notify()
        self._residency.ledger.notify()

    def _note_applied(self, link: ControlLink, message: Applied) -> None:
        peer = self._peers.connected[link]
        peer.applied = max(peer.applied, message.number)
        self._end_prepare(peer, message.number, None)
        self._peers.signal.notify()

    def _note_prepare_failed(self, link: ControlLink, message: PrepareFailed) -> None:
        peer = self._peers.connected[link]
        peer.applied = max(peer.applied, message.number)
        error = error_from_plain(message.error)
        self._end_prepare(peer, message.number, as_failed(error, "its load"))
        self._peers.signal.notify()

    def _end_prepare(self, peer: Peer, number: int, error: RoundhouseError | None) -> None:
        """Note the outcome of a Prepare, and tell the worker that the version is ready, or why it is not."""
        for serving, load in peer.loads.items():
            if load.prepare == number:
                engine = self._engines[serving]
                engine.has_prepared(peer, error)
                self._changes.show(peer, engine.version.model.name)
                return

    def _note_drained(self, link: ControlLink, message: Drained) -> None:
        peer, engine = self._peers.connected[link], self._engines.get(message.serving)
        if engine is None:
            return
        engine.has_drained(peer)
        if self._is_current(engine):
            # The drain was cancelled too late for this worker.
            self._changes.show(peer, engine.version.model.name)
            engine.prepare(peer)

    def _note_uses(self, link: ControlLink, message: Uses) -> None:
        peer = self._peers.connected[link]
        for use in message.versions:
            engine = self._engines.get(use.serving)
            if engine is not None:
                engine.note_use(peer, use)
        # A version that is idle now may be evicted.
        self._residency.ledger.notify()

    def _add_counts(self, message: LocalCounts) -> None:
        slot = slot_of(self._models, message.name)
        if slot is not None:
            add_counts(slot.identity.runs[message.version], Counts(message.batches, message.steps))

    def _note_settled(self, link: ControlLink, message: Settled) -> None:
        engine = self._engines.get(message.serving)
        if engine is not None:
            engine.settled(self._peers.connected[link], message.index)

    def _kill_engine(self, message: KillProcess) -> None:
        engine = self._engines.get(message.serving)
        if engine is not None:
            engine.kill(message)

    def _relay(self, link: ControlLink, message: Poisonous) -> None:
        """Tell the other workers, and those that connect later."""
        self._poisonous.append((Elapsed(time.monotonic), message))
        for other in self._peers.connected:
            if other is not link:
                other.send(message)

    async def _connect(self, link: ControlLink, request: Connect) -> Connected:
        engine = self._engines.get(request.serving)
        if engine is None:
            raise ModelFailed("the model was unloaded")
        return await engine.connect(self._peers.connected[link], request)

    async def _load_for_request(self, link: ControlLink, request: LoadForRequest) -> LoadEnded:
        """Load a version for a request of a worker, and hold a reference until the worker has applied its state."""
        peer = self._peers.connected[link]
        slot = slot_of(self._models, request.name)
        version = None if slot is None else slot.versions.get(request.version)
        permit = Permit(self._requests)
        try:
            if version is not None:
                await self._load_at(peer, version, permit)
            await self._changes.applied([peer])
        finally:
            permit.release()
        return LoadEnded(request.id)

    async def _load_at(self, peer: Peer, version: ModelVersion, permit: Permit) -> None:
        if version.phase is ModelState.DRAINING:
            return  # the worker waits for the end of the drain, which may wait for a reference of the same request
        # A loaded version whose process is down is not loaded again: its restart is near.
        if version.phase is not ModelState.READY:
            await self._load_unless_replaced(version, permit)
        engine = self._engines.get(version.serving_id)
        if engine is None or not engine.is_ready:
            return
        if version.spec is not None:
            version.acquire(permit, version.spec)
        await engine.ready_at(peer)

    async def _load_unless_replaced(self, version: ModelVersion, permit: Permit) -> None:
        """Load a version, unless another object replaces it: the request then uses that one, and may hold it already.

        This load may evict the other one, and would wait for that reference.
        """
        load = asyncio.get_running_loop().create_task(self._models.wait_for(version, permit))
        load.add_done_callback(lambda _: self._peers.signal.notify())
        try:
            await self._peers.signal.until(lambda: load.done() or not self._is_known(version))
        finally:
            load.cancel()
            await asyncio.wait([load])
        if not load.cancelled():
            load.result()
