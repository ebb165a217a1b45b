"""One registered model: its entry, its state, its lane while it is loaded, and the permits of those it answers."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from frameworks.errors import ModelFailed, ModelLoading, ModelUnloaded, Overloaded, VersionNotFound
from frameworks.runtime import BatchModel, ModelEntry
from frameworks.scheduling.batch_lane import BatchLane
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
    """A model's place on the turntable. Owned by the event loop; only the lane's thread touches the model."""

    def __init__(self, framework: str, entry: ModelEntry, path: Path, max_batch_size: int, max_queue_size: int) -> None:
        self.framework = framework
        self.entry = entry
        self.path = path
        self.name = entry.name
        self.version = ONLY_VERSION
        self.max_batch_size = max_batch_size
        self.max_queue_size = max_queue_size
        self._state = ModelState.REGISTERED
        self._reason: str | None = None
        self.loads = 0
        self.load_s = 0.0
        self.last_used: float | None = None  # seconds since the epoch, for people
        self.inflight = 0
        # Load, unload and delete of one model are done one after the other.
        self.change = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._model: BatchModel | None = None
        self._lane: BatchLane | None = None

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
        return self._model.spec if self._model else None

    @property
    def queue_depth(self) -> int:
        return self._lane.queue_depth if self._lane else 0

    def ready(self) -> tuple[BatchModel, BatchLane]:
        """The model and its lane, if it answers now.

        Raises ModelLoading, ModelUnloaded or ModelFailed where it does not.
        """
        if self.state is ModelState.READY and self._model and self._lane:
            return self._model, self._lane
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

    def check_room(self) -> None:
        """Raises Overloaded where `max_queue_size` permits are out: asked before the tensors are decoded."""
        if self.inflight >= self.max_queue_size:
            wait_s = max(0.001, self._lane.mean_compute_s * self.inflight) if self._lane else 1.0
            raise Overloaded(
                f'model "{self.name}" has {self.inflight} requests under way, its max_queue_size; '
                f"try again in {wait_s:.3f} s",
                retry_after_s=wait_s,
            )

    @contextmanager
    def permit(self) -> Iterator[None]:
        """Held until the answer has left; an unload waits for it. Raises Overloaded as `check_room`."""
        self.check_room()
        self.inflight += 1
        self.last_used = time.time()
        self._idle.clear()
        try:
            yield
        finally:
            self.inflight -= 1
            if not self.inflight:
                self._idle.set()

    def begin_load(self) -> None:
        self._state, self._reason = ModelState.LOADING, None

    def start(self, model: BatchModel, load_s: float) -> None:
        """Takes a loaded and warmed-up model into service."""
        self._model = model
        self._lane = BatchLane(self.name, model)
        self.load_s = load_s
        self.loads += 1
        self._state, self._reason = ModelState.READY, None

    def fail(self, reason: str) -> None:
        self._model = self._lane = None
        self._state, self._reason = ModelState.FAILED, reason

    async def stop(self) -> None:
        """Answers what is in flight, takes nothing new, then lets the model go.

        Cancelled while others are being answered, it leaves the model in service.
        """
        if self._lane:
            self._state = ModelState.DRAINING
            try:
                await self._idle.wait()
            except asyncio.CancelledError:
                self._state = ModelState.READY
                raise
        lane = self._let_go()
        if lane:
            await lane.close()

    def give_up(self, message: str) -> None:
        """Lets the model go without waiting for anything: those who wait for answers get Draining."""
        lane = self._let_go()
        if lane:
            lane.give_up(message)

    @property
    def _has_died(self) -> bool:
        return self._state is ModelState.READY and self._lane is not None and self._lane.is_dead

    def _let_go(self) -> BatchLane | None:
        lane, self._lane, self._model = self._lane, None, None
        self._state, self._reason = ModelState.UNLOADED, None
        return lane
