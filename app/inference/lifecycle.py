"""Hold the state of the server: starting, serving or draining. The process sets it; health and requests read it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from frameworks.core.errors import Draining
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState


class Lifecycle(ABC):
    """The state as requests need it. Owned by the event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        self._draining_since_s = 0.0
        self._on_drain: list[Callable[[], object]] = []

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server accepts requests and every start-up model is ready."""

    @property
    def is_starting(self) -> bool:
        """Whether a start-up model is being loaded."""
        return False

    def drain(self) -> None:
        """Refuse new requests from now on; /health/ready responds with 503."""
        self.is_draining = True
        self._draining_since_s = time.monotonic()
        for callback in self._on_drain:
            callback()

    def on_drain(self, callback: Callable[[], object]) -> None:
        """Call `callback` at the start of the drain. A signal handler may call it, at any point of the main thread."""
        self._on_drain.append(callback)

    def drain_left_s(self, drain_timeout_s: float) -> float:
        """Return the seconds left of the drain timeout, at least 0; all of them if the drain has not begun."""
        elapsed_s = time.monotonic() - self._draining_since_s if self.is_draining else 0.0
        return max(0.0, drain_timeout_s - elapsed_s)

    def check_accepting(self) -> None:
        """Raise Draining if the server is shutting down."""
        if self.is_draining:
            raise Draining(Draining.REFUSED)


class ServerLifecycle(Lifecycle):
    """The state of a server, by the states of its models."""

    def __init__(self, models: ServedModels, startup_models: tuple[str, ...]) -> None:
        super().__init__()
        self.models = models
        self._startup_models = startup_models
        self._started_s = time.monotonic()

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started_s

    def status(self, slots: Iterable[ModelSlot] | None = None) -> str:
        """Return `draining`, `starting` (a start-up model is loading), `degraded` (a model failed) or `healthy`.

        `slots`: the models that count; None: all.
        """
        if self.is_draining:
            return "draining"
        slots = self.models.slots if slots is None else list(slots)
        if any(slot.is_awaited for slot in slots if slot.name in self._startup_models):
            return "starting"
        return "degraded" if any(slot.state is ModelState.FAILED for slot in slots) else "healthy"

    @property
    def is_ready(self) -> bool:
        return not self.is_draining and not self.pending_models()

    @property
    def is_starting(self) -> bool:
        return self.status() == "starting"

    def pending_models(self) -> list[str]:
        """Return the start-up models that keep the server from being ready.

        Models that a caller unloaded or deleted, and evicted models, are not among them.
        """
        return [
            slot.name
            for slot in self.models.slots
            if slot.name in self._startup_models and (slot.is_awaited or slot.state is ModelState.FAILED)
        ]
