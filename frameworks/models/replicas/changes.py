"""Describe the models for the workers, publish changes, and wait until the workers have applied them."""

import asyncio
import os
import pickle
from collections.abc import Callable, Iterable
from functools import partial

from frameworks.engine.process.wire.messages import ErrorState
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.models.replicas.messages import ModelChanged, ModelRemoved, ModelState, ShareState, VersionState
from frameworks.models.replicas.peers import Peer, Peers
from frameworks.models.versions.contract import ServedModels, slot_of
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState as Phase
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version import ModelVersion


class Changes:
    """The changes of one round of the loop are published together. Owned by the event loop."""

    def __init__(self, models: ServedModels, peers: Peers, published: Callable[[str], None]) -> None:
        """`published(model)`: called after the state of a model was sent to all workers."""
        self._models = models
        self._peers = peers
        self._published = published
        self._unpublished: dict[str, None] = {}
        self._known: dict[str, tuple[ModelSlot, bytes]] = {}
        self._is_scheduled = False

    def note(self, name: str) -> None:
        """Publish the state of a model, or its removal, at the end of this round of the loop."""
        self._unpublished[name] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_round)

    def flush(self) -> None:
        """Publish all changes now."""
        while self._unpublished:
            name = next(iter(self._unpublished))
            del self._unpublished[name]
            for peer in self._peers.connected.values():
                self.show(peer, name)
            self._published(name)
        # A request may wait for a state that has changed.
        self._peers.signal.notify()

    def show(self, peer: Peer, name: str) -> None:
        """Send a worker the state of a model, or its removal, unless the worker has it."""
        slot = slot_of(self._models, name)
        known = self._known.get(name)
        if known is not None and known[0] is not slot:
            # Another model may have the name already.
            del self._known[name]
            for each in self._peers.connected.values():
                if each.shown.pop(name, None) is not None:
                    self._peers.send(each, lambda number: ModelRemoved(number, name))
        if slot is None:
            return
        if name not in self._known:
            self._known[name] = (slot, pickle.dumps(slot.entry))
        state = state_of(slot, self._known[name][1], peer)
        if peer.shown.get(name) == state:
            return
        peer.shown[name] = state
        self._peers.send(peer, lambda number: ModelChanged(number, state))
        for version in state.versions:
            if version.state == Phase.READY:
                peer.loads[version.serving].is_shown = True

    async def applied(self, peers: Iterable[Peer] | None = None) -> None:
        """Wait until workers have applied all that was published before the call. `peers`: None for all workers."""
        waited_for = list(self._peers.connected.values()) if peers is None else list(peers)
        # The message after a Prepare is sent when that is applied, and awaited in the second round.
        for _ in range(2):
            self.flush()
            await self._peers.signal.until(partial(self._have_applied, [(p, p.sent, p.pending) for p in waited_for]))

    def _have_applied(self, targets: list[tuple[Peer, int, set[int]]]) -> bool:
        return all(
            not self._peers.is_connected(peer) or (peer.applied >= sent and pending.isdisjoint(peer.pending))
            for peer, sent, pending in targets
        )

    def _end_round(self) -> None:
        self._is_scheduled = False
        self.flush()


def state_of(slot: ModelSlot, entry: bytes, peer: Peer) -> ModelState:
    """Return the state of a model for a worker. `entry`: pickle of its settings."""
    return ModelState(
        name=slot.name,
        framework=slot.framework,
        entry=entry,
        path=os.fsencode(slot.path),
        isolation=slot.isolation,
        counters=0 if slot.identity.row is None else slot.identity.row.number,
        versions=[_version_state(version, peer) for version in slot.versions.values()],
        active=slot.active.version,
        previous=slot.previous.version if slot.previous else None,
        canary=_share_state(slot.canary),
        shadow=_share_state(slot.shadow),
    )


def _version_state(version: ModelVersion, peer: Peer) -> VersionState:
    phase, serving = version.phase, 0
    failure = version.failures.last if phase is Phase.FAILED else None
    load = peer.loads.get(version.serving_id) if version.spec is not None else None
    if phase is Phase.READY and (load is None or not load.is_held):
        # The supervisor and other workers have it.
        failure = None if load is None or load.prepare is not None else load.failure
        phase = Phase.LOADING if failure is None else Phase.FAILED
    elif load is not None and (phase is Phase.READY or load.is_shown):
        serving = version.serving_id
    return VersionState(
        version=version.version,
        path=os.fsencode(version.path),
        state=phase.value,
        next_state=version.next_state.value,
        waits_for_load=version.waits_for_load,
        serving=serving,
        load_s=version.load_s,
        memory_bytes=version.memory_bytes,
        failure=_error_state(failure),
        retry_in_s=version.failures.retry_in_s if failure is not None else 0.0,
    )


def _error_state(error: Exception | None) -> ErrorState | None:
    return None if error is None else error_to_plain(error)


def _share_state(share: Share | None) -> ShareState | None:
    return None if share is None else ShareState(share.version, share.percent)
