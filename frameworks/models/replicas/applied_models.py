"""Apply the state of the models that the supervisor publishes: route requests by it, open and drain engines."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from frameworks.core.errors import Draining, ModelNotFound, RoundhouseError
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.models.replicas import messages
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.engines import WorkerEngines
from frameworks.models.replicas.identities import Identities
from frameworks.models.replicas.messages import (
    Abandon,
    Applied,
    Drained,
    EndModelRequests,
    ModelChanged,
    ModelRemoved,
    Prepare,
    PrepareFailed,
    ShareState,
    VersionState,
)
from frameworks.models.replicas.serving import ReplicaVersion, Serving
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version import ModelVersion


class AppliedModels:
    """The models and the loads of a worker. Owned by the event loop.

    ModelChanged and ModelRemoved are applied at once. Requests wait for a load that is ready and not yet open here.
    """

    def __init__(self, link: ControlLink, engines: WorkerEngines, identities: Identities) -> None:
        """`link`: not yet open."""
        self._link = link
        self._engines = engines
        self._identities = identities
        self.slots: dict[str, ModelSlot] = {}
        self.slots_by_name: dict[str, ModelSlot] = {}
        """Also by their aliases."""
        self.servings: dict[int, Serving] = {}
        """The loads that were prepared here, by number, until they are drained."""
        self.before_drained: Callable[[Serving], None] = lambda serving: None
        """Called before a load is reported as drained."""
        self.is_closing = False
        link.handle(ModelChanged, self._change)
        link.handle(ModelRemoved, self._remove)
        link.handle(Prepare, self._prepare)
        link.handle(Abandon, self._abandon)
        link.handle(EndModelRequests, self._end_requests)

    def is_current(self, version: ModelVersion) -> bool:
        """Whether requests are routed to this object: no other load has replaced it."""
        slot = self.slots.get(version.model.name)
        return slot is not None and slot.versions.get(version.version) is version

    async def close(self) -> None:
        """Apply no further changes, and close all engines when their requests have ended."""
        self.is_closing = True
        for slot in self.slots.values():
            for version in _versions(slot):
                version.note_change()
        for serving in self.servings.values():
            if serving.is_wanted:
                self._drain(serving, ModelState.UNLOADED)
        for serving in list(self.servings.values()):
            await serving.drained()

    async def abort(self, message: str) -> None:
        """Close the engines that are left; their requests fail with Draining."""
        for serving in list(self.servings.values()):
            await serving.abort(message)

    def _change(self, message: ModelChanged) -> None:
        if not self.is_closing:
            self._apply(message.model)
        self._link.send(Applied(message.number))

    def _apply(self, model: messages.ModelState) -> None:
        slot = self.slots.get(model.name)
        if slot is None:
            slot = self.slots[model.name] = self._identities.slot_of(model)
            self.slots_by_name.update(dict.fromkeys(slot.names, slot))
        before = _versions(slot)
        versions = {state.version: self._published(slot, state) for state in model.versions}
        slot.versions = dict(sorted(versions.items(), key=lambda item: int(item[0])))
        slot.active = versions[model.active]
        slot.previous = versions.get(model.previous or "")
        slot.canary, slot.shadow = _share(slot.canary, model.canary), _share(slot.shadow, model.shadow)
        for version in versions.values():
            self._enter(version)
        self._drain_replaced(slot)
        for version in {*before, *versions.values()}:
            version.note_change()

    def _published(self, slot: ModelSlot, state: VersionState) -> ReplicaVersion:
        """Return the object for the published state of a version: another one where it has another load."""
        serving, current = self.servings.get(state.serving), slot.versions.get(state.version)
        if serving is not None and serving.version is not None:
            version = serving.version
        elif isinstance(current, ReplicaVersion) and current.spec is None:
            version = current
        else:
            version = ReplicaVersion(slot.identity, state)
        version.published = state
        return version

    def _enter(self, version: ReplicaVersion) -> None:
        """Enter the published state. A version that has its engine keeps it until its requests have ended."""
        published = version.published
        version.path, version.memory_bytes = Path(os.fsdecode(published.path)), published.memory_bytes
        if not version.ready_serving:
            if version.spec is None:
                version.enter(published)
            elif published.state == ModelState.DRAINING:
                version.begin_draining(ModelState(published.next_state))
            return
        if version.spec is None:
            version.defer_load()  # until its engine is here
        serving = self.servings.get(version.ready_serving)
        if serving is not None:
            serving.was_ready = True
            serving.open()
            self._use(serving)

    def _drain_replaced(self, slot: ModelSlot) -> None:
        """Drain the loads of a model that were ready and are so no more."""
        ready = {version.ready_serving for version in _versions(slot)}
        for serving in self._servings_of(slot.name):
            if serving.was_ready and serving.number not in ready:
                version = serving.version
                is_draining = version is not None and version.phase is ModelState.DRAINING
                # Requests that find a replaced load are routed again.
                self._drain(serving, version.next_state if version and is_draining else ModelState.REGISTERED)

    def _use(self, serving: Serving) -> None:
        """Let the requests of the version that is ready with this load use its engine."""
        version, engine = self._version_of(serving), serving.engine
        if version is None or engine is None or version.ready_serving != serving.number:
            return
        if serving.version is None:
            serving.version = version
            version.start(engine, version.published.load_s, serving.number)
        elif serving.is_usable and version.phase is ModelState.DRAINING:
            version.resume()
        version.note_change()

    def _note_failed(self, serving: Serving, error: RoundhouseError) -> None:
        """Let a later request try again to open the engine of a load that is ready."""
        version = self._version_of(serving)
        if version is not None and version.ready_serving == serving.number:
            version.fail(error)
            version.note_change()

    def _drain(self, serving: Serving, next_state: ModelState) -> None:
        """Close the engine of a load after its requests. `next_state`: for requests that arrive meanwhile."""
        if serving.version is not None:
            serving.version.begin_draining(next_state)
            serving.version.note_change()
        serving.drain(self._report_drained)

    def _report_drained(self, serving: Serving) -> None:
        self._forget(serving)
        self.before_drained(serving)
        if self.is_closing:
            return
        self._link.send(Drained(serving.number))
        version = self._version_of(serving)
        if version is not None and version.spec is None and not version.ready_serving:
            version.enter(version.published)
            version.note_change()

    def _forget(self, serving: Serving) -> None:
        if self.servings.get(serving.number) is serving:
            del self.servings[serving.number]

    def _version_of(self, serving: Serving) -> ReplicaVersion | None:
        """Return the object that requests for the version of a load are routed to."""
        slot = self.slots.get(serving.prepare.name)
        version = None if slot is None else slot.versions.get(serving.prepare.version)
        return version if isinstance(version, ReplicaVersion) else None

    def _servings_of(self, name: str) -> list[Serving]:
        return [serving for serving in self.servings.values() if serving.prepare.name == name]

    def _remove(self, message: ModelRemoved) -> None:
        slot = self.slots.pop(message.name, None)
        for name in () if slot is None else slot.names:
            # A name of the removed model may be one of another model already.
            if self.slots_by_name.get(name) is slot:
                del self.slots_by_name[name]
        if not self.is_closing:
            for serving in self._servings_of(message.name):
                if serving.was_ready:
                    self._drain(serving, ModelState.UNLOADED)
        for version in [] if slot is None else _versions(slot):
            version.note_change()
        self._link.send(Applied(message.number))

    def _prepare(self, message: Prepare) -> None:
        try:
            serving = self._serving_for(message)
        except RoundhouseError as error:
            self._link.send(PrepareFailed(message.number, error_to_plain(error)))
        else:
            self._link.start(self._answer(message, serving, serving.open()))

    def _serving_for(self, message: Prepare) -> Serving:
        """Return the load to open. Raises ModelNotFound, VersionNotFound, Draining."""
        if self.is_closing:
            raise Draining(Draining.REFUSED)
        serving = self.servings.get(message.serving)
        if serving is None:
            slot = self.slots.get(message.name)
            if slot is None:
                raise ModelNotFound(message.name, self.slots)
            slot.find(message.version)
            source = ModelVersion(slot.identity, message.version, Path(os.fsdecode(message.path)))
            serving = Serving(message, source, self._engines, self._use, self._note_failed)
            self.servings[message.serving] = serving
        return serving

    async def _answer(self, message: Prepare, serving: Serving, opening: "asyncio.Task[None]") -> None:
        await asyncio.wait([opening])
        while opening.cancelled() and serving.is_wanted:
            opening = serving.open()
            await asyncio.wait([opening])
        error = Draining.unloaded(message.name) if opening.cancelled() else opening.exception()
        if error is None:
            self._link.send(Applied(message.number))
            return
        if not serving.was_ready and not serving.is_busy:
            self._forget(serving)
        self._link.send(PrepareFailed(message.number, error_to_plain(error)))

    def _abandon(self, message: Abandon) -> None:
        serving = self.servings.get(message.serving)
        if serving is not None:
            serving.drain(self._forget)

    def _end_requests(self, message: EndModelRequests) -> None:
        serving = self.servings.get(message.serving)
        if serving is not None and serving.version is not None:
            serving.version.end_requests()


def _versions(slot: ModelSlot) -> list[ReplicaVersion]:
    return [version for version in slot.versions.values() if isinstance(version, ReplicaVersion)]


def _share(before: Share | None, published: ShareState | None) -> Share | None:
    """Return a share as published; its progress goes on while it does not change."""
    if published is None:
        return None
    if before is not None and (before.version, before.percent) == (published.version, published.percent):
        return before
    return Share(published.version, published.percent)
