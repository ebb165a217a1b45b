"""Publish the state of the models to the workers, and know when they have applied it."""

import asyncio
import pickle
from collections.abc import Callable, Iterable
from functools import partial

from frameworks.models.versions.contract import ServedModels, slot_of
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelState as Phase
from frameworks.replicas.messages import ModelChanged, ModelRemoved
from frameworks.replicas.model_states import state_of
from frameworks.replicas.peers import Peer, Peers


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
