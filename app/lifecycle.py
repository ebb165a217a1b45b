"""Whether the server is starting, serving or draining: asked by health and at the door, told by the process."""

import time

from frameworks.errors import Draining
from frameworks.manager import MLFrameworkManager
from frameworks.slot import ModelState

_NOT_YET = (ModelState.REGISTERED, ModelState.LOADING)


class Lifecycle:
    """Owned by the event loop."""

    def __init__(self, manager: MLFrameworkManager, startup_models: tuple[str, ...]) -> None:
        self._manager = manager
        self._startup_models = startup_models
        self._started_s = time.monotonic()
        self.is_draining = False

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started_s

    def drain(self) -> None:
        """From now on /health/ready says 503 and no new request is taken."""
        self.is_draining = True

    def check_accepting(self) -> None:
        """Raises Draining once the server is going down."""
        if self.is_draining:
            raise Draining("the server is going down; ask another")

    def status(self) -> str:
        """`draining`, `starting` (a start-up model is on its way), `degraded` (a model failed) or `healthy`."""
        if self.is_draining:
            return "draining"
        states = {slot.name: slot.state for slot in self._manager.slots}
        if any(states.get(name) in _NOT_YET for name in self._startup_models):
            return "starting"
        return "degraded" if ModelState.FAILED in states.values() else "healthy"

    def waits_for(self) -> list[str]:
        """The start-up models that keep the server from being ready. One that a caller unloaded or deleted does not."""
        states = {slot.name: slot.state for slot in self._manager.slots}
        return [name for name in self._startup_models if states.get(name) in (*_NOT_YET, ModelState.FAILED)]
