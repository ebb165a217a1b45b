"""Which version of which model answers a request: found while it is decoded, and held from then on."""

from collections.abc import Callable

from app.observability.metrics import RequestRecord
from frameworks.errors import InvalidInput, ModelUnloaded
from frameworks.manager import MLFrameworkManager
from frameworks.models.slot import ModelSlot
from frameworks.models.version import ModelVersion, VersionNotLoaded
from frameworks.scheduling.admission import Permit
from frameworks.types import ModelSpec


class RequestContext:
    """What is known of one request's model while it is decoded: the version that is to answer stays the same one."""

    __slots__ = ("_manager", "not_loaded", "permit", "record", "shadowed", "timeout_ms", "version")

    def __init__(self, manager: MLFrameworkManager, record: RequestRecord, permit: Permit) -> None:
        self._manager = manager
        self.record = record
        self.permit = permit
        self.version: ModelVersion | None = None
        self.not_loaded: ModelVersion | None = None
        """The version whose load the request has to wait for."""
        self.timeout_ms: float | None = None
        """The deadline that the request named, as far as it was read before the version was found not to be loaded."""
        self.shadowed: ModelSlot | None = None
        """The model, if its answer to this request is compared with that of another version."""

    def look(self, name: str, version: str | None) -> None:
        """Raises what keeps the model from answering before the body is read. Which version answers is settled then:
        another may serve when the body has come.
        """
        slot = self._manager.slot(name)
        self.record.model, self.record.version = slot.name, slot.version
        chosen = slot.default_version if version is None else slot.version_named(version)
        try:  # noqa: SIM105 - `suppress` costs a third of a microsecond, for each request
            self._check(chosen)
        except VersionNotLoaded:
            pass

    def find_spec(
        self, name: str, version: str | None, read_timeout_ms: Callable[[], float | None] = lambda: None
    ) -> ModelSpec:
        """What the version that answers is; of the only model that generates text where `name` is "". Raises what keeps
        it from answering, before body or tensors are read.
        """
        chosen = self.version
        if chosen is None:
            slot = self._manager.slot(name or self._generating())
            self.record.model, self.record.version = slot.name, slot.version
            chosen = self.version = slot.route() if version is None else slot.version_named(version)
            self.record.version = chosen.version
            self.shadowed = slot if slot.shadow is not None and version is None and chosen is slot.active else None
        try:
            return self._check(chosen)
        except ModelUnloaded:
            if version is None and self._manager.slot(chosen.model.name).default_version is not chosen:
                # It left between two readings of a long body, in a thread; its successor answers.
                self.version = None
                return self.find_spec(chosen.model.name, version, read_timeout_ms)
            raise
        except VersionNotLoaded:
            self.timeout_ms = read_timeout_ms()
            raise

    def _generating(self) -> str:
        """The name of the model that generates text. Raises InvalidInput where none does, or several."""
        names = [slot.name for slot in self._manager.slots if slot.spec is not None and slot.spec.task == "generate"]
        if len(names) != 1:
            there = f"{', '.join(names)} generate text" if names else "no model that generates text is loaded"
            raise InvalidInput("model_name", f"is missing, and {there}; name one")
        return names[0]

    def enter(self, spec: ModelSpec) -> bool:
        """Whether the version that the request was decoded for answers it; else another one may have to."""
        version = self.version
        assert version is not None
        if version.enter(self.permit, spec):
            return True
        self.permit.release_model()
        self.version = None
        return False

    def _check(self, version: ModelVersion) -> ModelSpec:
        spec = version.spec_for(self.permit)
        if not version.model.entry.cache:
            # What is known already is answered also where there is no room.
            self.permit.check_room(version.model.requests)
        return spec
