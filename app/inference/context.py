"""The state of one request: its permit, its timings, and the version that answers it."""

from collections.abc import Callable

import numpy as np

from app.inference.model_view import ModelView
from app.inference.unnamed_model import UnnamedModel
from app.observability.metrics import RequestRecord
from frameworks.core.errors import AdapterNotFound, ModelUnloaded
from frameworks.engine.contract import Run
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion, VersionNotLoaded
from frameworks.scheduling.admission import Permit
from frameworks.types import Array, ModelSpec

ADAPTER_MARK = ":"
"""Between the name of a model and that of its adapter. No name of a model contains it."""


class RunContext(Run):
    """A run and the version that answers it. `version` is set when it is known; the permit holds a reference to it."""

    __slots__ = ("version",)

    version: ModelVersion


class RequestContext(RunContext):
    """The context of one client's request. The version is chosen once, while the request is decoded."""

    __slots__ = ("_is_routed", "_served", "not_loaded", "record", "shadowed", "timeout_ms")

    def __init__(self, models: ServedModels, record: RequestRecord, permit: Permit) -> None:
        self.permit = permit
        self.timings = record.timings
        self.record = record
        self._served = models
        self._is_routed = False
        self.not_loaded: ModelVersion | None = None
        """The version whose load the request has to wait for."""
        self.timeout_ms: float | None = None
        """The deadline that the request names, if it was read before the version was found not to be loaded."""
        self.shadowed: ModelSlot | None = None
        """The model, if the response to this request is compared with that of a shadow version."""

    @property
    def models(self) -> ModelView:
        """The models that the sender of the request may use."""
        return ModelView(self._served, self.record.principal)

    def check_available(self, name: str, version: str | None) -> None:
        """Raise what keeps the model from answering, before the body is read.

        The version is not chosen yet: another one may serve when the body has arrived.
        """
        slot = self._find_slot(name)
        chosen = slot.default_version if version is None else slot.version_named(version)
        try:
            chosen.spec_for(self.permit)
        except VersionNotLoaded:
            return
        if not chosen.model.entry.cache:
            self.permit.check_room(chosen.model.requests)

    def find_spec(
        self, name: str | UnnamedModel, version: str | None, read_timeout_ms: Callable[[], float | None]
    ) -> ModelSpec:
        """Choose the version that answers and return its spec; see FindSpec of the pipeline.

        Called before the body's data are read. Raises what keeps the version from answering; VersionNotLoaded if the
        request has to wait for a load; InvalidInput if it names no model and several models could answer.
        """
        if self._is_routed:
            chosen = self.version
        else:
            slot = self._find_slot(name if isinstance(name, str) else name.name_in(self.models.slots))
            if version is not None:
                chosen = slot.version_named(version)
            elif slot.canary is None and slot.serves_latest:
                chosen = slot.active  # as route() does, for the usual model
            else:
                chosen = slot.route()
            self.version = chosen
            self._is_routed = True
            self.record.version = chosen.version
            if slot.shadow is not None:
                self.shadowed = slot if version is None and chosen is slot.active else None
        try:
            spec = chosen.spec_for(self.permit)
            if self.record.adapter:
                check_adapter(chosen.model.name, self.record.adapter, spec)
            if not chosen.model.entry.cache:
                # A cached response is sent even if the queue is full.
                self.permit.check_room(chosen.model.requests)
        except ModelUnloaded:
            if version is None and self.models.slot(chosen.model.name).default_version is not chosen:
                # It was unloaded between two readings of a long body, on a thread; its successor answers.
                self._is_routed = False
                return self.find_spec(self.record.answered_name, version, read_timeout_ms)
            raise
        except VersionNotLoaded:
            self.not_loaded = chosen
            self.timeout_ms = read_timeout_ms()
            raise
        return spec

    def lease_body(self, name: str, version: str | None, nbytes: int) -> Array:
        """Return memory for the body of a request, uint8 [nbytes]. Call it after `check_available`.

        The version is not chosen yet: another one gets copies of the tensors, if its process has other memory.
        """
        slot = self._served.slots_by_name.get(name.partition(ADAPTER_MARK)[0])
        if slot is not None:  # else it was removed meanwhile
            chosen = slot.default_version if version is None else slot.version_named(version)
            leased = chosen.lease_body(nbytes)
            if leased is not None:
                return leased
        return np.empty(nbytes, np.uint8)

    def check_queue_of(self, name: str) -> None:
        """Raise Overloaded if a model has no room; does nothing for an unknown name."""
        slot = self.models.get(name.partition(ADAPTER_MARK)[0])
        if slot is not None:
            slot.requests.check_room()

    def reroute(self) -> None:
        """Route the request again: the version that was chosen no longer answers."""
        self.permit.release_version()
        self._is_routed = False

    def reroute_unless_held(self, version: ModelVersion) -> None:
        """After waiting for a load: route the request again, unless this version has waited for it."""
        self._is_routed = version.is_held_by(self.permit)
        if self._is_routed:
            self.version = version

    def _find_slot(self, name: str) -> ModelSlot:
        """Return a model, and note it on the record with its alias and its adapter. Raises ModelNotFound."""
        adapter = ""
        if ADAPTER_MARK in name:
            base, _, adapter = name.partition(ADAPTER_MARK)
            name = base if adapter else name  # without the name of an adapter, it names no model
        record = self.record
        principal = record.principal
        slot = self._served.slots_by_name.get(name)
        if slot is None or not (principal.sees_all or principal.may_use(slot.name)):
            slot = self.models.slot(name)
        record.model, record.version, record.adapter = slot.name, slot.active.version, adapter
        record.alias = "" if name == slot.name else name
        return slot


def check_adapter(model: str, adapter: str, spec: ModelSpec) -> None:
    """Raise AdapterNotFound if the loaded model has no adapter of this name."""
    names = [each.name for each in spec.generation.adapters] if spec.generation is not None else []
    if adapter not in names:
        raise AdapterNotFound(model, adapter, names)
