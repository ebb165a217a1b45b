"""One registered model: its entry, its state, its bounds, and its instances while it is loaded."""

import asyncio
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path

from frameworks.errors import ModelFailed, ModelLoading, ModelUnloaded, VersionNotFound
from frameworks.runtime import BatchModel, ModelEntry
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.batch_lane import BatchLane
from frameworks.scheduling.batcher import BatchLimits
from frameworks.scheduling.dispatcher import Dispatcher
from frameworks.types import ModelSpec

# The only version of a model whose path holds no version folders.
ONLY_VERSION = "1"


class ModelState(StrEnum):
    """As /models and /health show it."""

    REGISTERED = "registered"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


class ModelSlot:
    """A model's place on the turntable. Owned by the event loop."""

    def __init__(self, framework: str, entry: ModelEntry, path: Path, limits: BatchLimits, ageing_s: float) -> None:
        """`path` is absolute. `ageing_s`: after which a waiting request gains a level of priority."""
        self.framework = framework
        self.entry = entry
        self.path = path
        self.name = entry.name
        self.version = ONLY_VERSION
        self.limits = limits
        self.requests = RequestLimit(f'model "{entry.name}"', entry.max_queue_size, entry.max_concurrent_requests)
        self._ageing_s = ageing_s
        self._state = ModelState.REGISTERED
        self._reason: str | None = None
        self.loads = 0
        self.load_s = 0.0
        self.last_used: float | None = None  # seconds since the epoch, for people
        # Load, unload and delete of one model are done one after the other.
        self.change = asyncio.Lock()
        self._serving: tuple[BatchModel, Dispatcher] | None = None
        # Of all loads: a counter that begins anew would look like a restart.
        self.batch_sizes: Counter[int] = Counter()

    @property
    def state(self) -> ModelState:
        """A model whose device thread has ended has failed, also before anybody has asked it anything."""
        return ModelState.FAILED if self._has_died else self._state

    @property
    def reason(self) -> str | None:
        """Why the model is `failed`."""
        return "its device thread ended" if self._has_died else self._reason

    @property
    def spec(self) -> ModelSpec | None:
        """What the loaded model is; None while none is loaded."""
        return self._serving[0].spec if self._serving else None

    @property
    def queue_depth(self) -> int:
        """Requests that wait: they are decoded, and nothing of them runs yet."""
        return self.requests.waiting

    def ready(self) -> tuple[BatchModel, Dispatcher]:
        """The model and the dispatcher before it, if it answers now.

        Raises ModelLoading, ModelUnloaded or ModelFailed where it does not.
        """
        serving = self._serving
        if serving is not None and self._state is ModelState.READY and not serving[1].is_dead:
            return serving
        match self.state:
            case ModelState.FAILED:
                raise ModelFailed(
                    f'model "{self.name}" failed: {self.reason}; mend it, then POST /models/{self.name}/load'
                )
            case ModelState.UNLOADED | ModelState.DRAINING:
                raise ModelUnloaded(f'model "{self.name}" was unloaded; POST /models/{self.name}/load brings it back')
            case _:
                raise ModelLoading(f'model "{self.name}" is {self.state}; ask again when GET /health/ready answers 200')

    def check_version(self, version: str) -> None:
        """Raises VersionNotFound for any version but the one that is loaded."""
        if version != self.version:
            raise VersionNotFound(self.name, version, [self.version])

    def admit(self, permit: Permit) -> None:
        """The request of this permit waits for the model now; an unload waits for it. Raises Overloaded."""
        permit.queue(self.requests)
        self.last_used = time.time()

    def begin_load(self) -> None:
        self._state, self._reason = ModelState.LOADING, None

    def start(self, instances: list[BatchModel], load_s: float) -> None:
        """Takes the loaded and warmed-up instances of a model into service, each on a thread of its own."""
        lanes = [BatchLane(self.name, model) for model in instances]
        spec = instances[0].spec
        dispatcher = Dispatcher(self.name, lanes, spec, self.limits, self._ageing_s, self.batch_sizes)
        self._serving = instances[0], dispatcher
        self.load_s = load_s
        self.loads += 1
        self._state, self._reason = ModelState.READY, None

    def fail(self, reason: str) -> None:
        self._serving = None
        self._state, self._reason = ModelState.FAILED, reason

    async def stop(self) -> None:
        """Answers what is in flight, takes nothing new, then lets the model go.

        Cancelled while others are being answered, it leaves the model in service.
        """
        if self._serving:
            self._state = ModelState.DRAINING
            try:
                await self.requests.wait_until_idle()
            except asyncio.CancelledError:
                self._state = ModelState.READY
                raise
        dispatcher = self._let_go()
        if dispatcher:
            await dispatcher.close()

    def give_up(self, message: str) -> None:
        """Lets the model go without waiting for anything: those who wait for answers get Draining."""
        dispatcher = self._let_go()
        if dispatcher:
            dispatcher.give_up(message)

    @property
    def _has_died(self) -> bool:
        return self._state is ModelState.READY and self._serving is not None and self._serving[1].is_dead

    def _let_go(self) -> Dispatcher | None:
        serving, self._serving = self._serving, None
        self._state, self._reason = ModelState.UNLOADED, None
        return serving[1] if serving else None
