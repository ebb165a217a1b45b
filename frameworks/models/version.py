"""One version of a model: its files, its state, who is using it, and its instances while it is loaded."""

import asyncio
import itertools
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from frameworks.errors import ModelFailed, ModelLoading, ModelUnloaded, OutOfMemory, RoundhouseError
from frameworks.generation.types import StepStats
from frameworks.models.identity import ModelIdentity
from frameworks.models.serving import BatchServing, Serving, StepServing, start_serving
from frameworks.runtime import BatchModel, LoadedModel, StepModel
from frameworks.scheduling.admission import Permit
from frameworks.types import ModelSpec

# A load that failed is tried again after a second, after two, after four …
_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0

_serving_ids = itertools.count(1)


class VersionNotLoaded(ModelLoading):
    """The version has to be loaded first. The request pipeline waits for the load; no caller sees this error."""

    def __init__(self, version: "ModelVersion") -> None:
        super().__init__(f"{version} is not loaded")
        self.version = version


class ModelState(StrEnum):
    """As /models and /health show it."""

    REGISTERED = "registered"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


class ModelVersion:
    """Owned by the event loop.

    A request that uses it, or waits for its load, is its visitor until its answer has left: a version with references
    drains before it goes.
    """

    def __init__(self, model: ModelIdentity, version: str, path: Path, clock: Callable[[], float] = time.monotonic):
        """`path` is absolute."""
        self.model = model
        self.version = version
        self.path = path
        self._clock = clock
        self._state = ModelState.REGISTERED
        self._next_state = ModelState.UNLOADED
        self._failure: RoundhouseError | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self.load_s = 0.0
        self.memory_bytes = 0
        """As measured when it was loaded; kept when it is gone, for the next time."""
        self.measured_on = ""
        """The kind of device that this was on."""
        self.serving_id = 0
        """Another one for each load: what was answered by one load is not the next one's answer."""
        # Of the clock: when it was used last, and since when it is ready.
        self.last_used_s: float | None = None
        self.ready_since_s = 0.0
        self._serving: Serving | None = None
        self._last_spec: ModelSpec | None = None
        self._holders: set[Permit] = set()
        # Visitors too, from when it is loaded on: what is left of the load before does not wait for them.
        self._awaiting_load: set[Permit] = set()
        self._idle: asyncio.Future[None] | None = None
        # It is brought in and sent out by one at a time.
        self.lock = asyncio.Lock()
        self.load_task: asyncio.Task[None] | None = None
        """Its load, while it is on its way."""
        self.waits_for_load = model.entry.load == "lazy"
        """Whether who asks for it while it is not loaded waits for that. A start-up model's first load is not waited
        for: the server is not ready before it."""

    def __str__(self) -> str:
        return f'model "{self.model.name}", version "{self.version}"'

    @property
    def state(self) -> ModelState:
        """A version whose device threads have ended has failed, also before anybody has asked it anything."""
        return ModelState.FAILED if self.has_died else self._state

    @property
    def reason(self) -> str | None:
        """Why it is `failed`."""
        if self.has_died:
            return "its device thread ended"
        return self._failure.message if self._failure and self._state is ModelState.FAILED else None

    @property
    def has_died(self) -> bool:
        return self._state is ModelState.READY and self._serving is not None and self._serving.dispatcher.is_dead

    @property
    def is_ready(self) -> bool:
        serving = self._serving
        return serving is not None and self._state is ModelState.READY and not serving.dispatcher.is_dead

    @property
    def is_running(self) -> bool:
        """Whether an instance computes."""
        return self._serving is not None and self._serving.dispatcher.is_running

    @property
    def spec(self) -> ModelSpec | None:
        """What the loaded version is; None while it is not loaded."""
        return self._serving.model.spec if self._serving else None

    @property
    def loads(self) -> int:
        """How often a version of this name was loaded."""
        return self.model.loads[self.version]

    @property
    def is_in_use(self) -> bool:
        return bool(self._holders or self._awaiting_load)

    @property
    def seconds_unused(self) -> float | None:
        """Since its last use; None if it never was used."""
        return None if self.last_used_s is None else self._clock() - self.last_used_s

    @property
    def references(self) -> int:
        return len(self._holders) + len(self._awaiting_load)

    def is_held_by(self, permit: Permit) -> bool:
        """Whether the request may use the loaded instances, which stay for it."""
        return permit in self._holders

    def spec_for(self, permit: Permit) -> ModelSpec:
        """Return what a request is decoded by.

        Raises VersionNotLoaded if the request has to wait for a load, and what keeps the version from answering.
        """
        serving = self._serving
        is_alive = serving is not None and not serving.dispatcher.is_dead
        if serving is not None and is_alive and (self._state is ModelState.READY or permit in self._holders):
            return serving.model.spec
        self.check_may_load()
        raise VersionNotLoaded(self)

    def described(self) -> ModelSpec | None:
        """What it is, also where it has left to make room; None where it was never loaded, and whoever asks brings it
        in. Raises what keeps it from answering.
        """
        if not self.is_ready:
            self.check_may_load()
        return self._last_spec

    def acquire(self, permit: Permit, spec: ModelSpec) -> bool:
        """Makes the request a visitor, if the version that it was decoded for still answers."""
        serving = self._serving
        if serving is None or serving.model.spec is not spec:
            return False
        if serving.dispatcher.is_dead or (self._state is not ModelState.READY and permit not in self._holders):
            return False
        self._holders.add(permit)
        if permit.held is not self:
            permit.hold(self)
        return True

    def expect(self, permit: Permit) -> None:
        """Makes a visitor of a request that waits for the load: the version does not leave before it was served."""
        assert self._state is not ModelState.DRAINING, "it would wait for one that waits for its going"
        permit.release_version()  # also one of the instances that have died
        self._awaiting_load.add(permit)
        permit.hold(self)

    def release(self, permit: Permit) -> None:
        """The answer of a visitor has left, or its caller has."""
        self._awaiting_load.discard(permit)
        self._holders.discard(permit)
        if not self._holders and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def touch(self) -> None:
        """It was used."""
        self.last_used_s = self._clock()

    def serving(self) -> BatchServing:
        """The model and the dispatcher before it, for a visitor with tensors or texts. Raises ModelFailed where it has
        died.
        """
        serving = self._serving
        if serving is None or serving.dispatcher.is_dead:
            raise ModelFailed(f'model "{self.model.name}" failed: its device thread ended')
        self.last_used_s = self._clock()
        assert isinstance(serving, BatchServing), "what was decoded by its spec suits it"
        return serving

    def generating(self) -> StepServing:
        """The same for a visitor with a prompt."""
        serving = self._in_service()
        assert isinstance(serving, StepServing), "what was decoded by its spec suits it"
        return serving

    def model_in_service(self) -> BatchModel | StepModel:
        """The model of either, for a visitor that asks its tokenizer."""
        return self._in_service().model

    @property
    def step_stats(self) -> list[StepStats]:
        """How each instance of a loaded model that generates text stands; empty for any other."""
        return self._serving.dispatcher.stats if isinstance(self._serving, StepServing) else []

    def check_integrity(self) -> None:
        """Raises AssertionError where an instance that has nothing to do holds something for somebody."""
        if isinstance(self._serving, StepServing):
            self._serving.dispatcher.check_integrity()

    def check_may_load(self) -> None:
        """Raises what keeps it from being loaded for whoever asks it something: ModelLoading, ModelUnloaded, and, until
        it is tried again, ModelFailed or OutOfMemory.
        """
        match self.state:
            case ModelState.UNLOADED | ModelState.DRAINING if self._next_state is ModelState.UNLOADED:
                raise ModelUnloaded(
                    f'model "{self.model.name}" was unloaded; POST /models/{self.model.name}/load brings it back'
                )
            case ModelState.FAILED:
                if self.has_died:
                    self._note_failure(ModelFailed("its device thread ended"))
                left_s = self._retry_at_s - self._clock()
                if left_s > 0:
                    kind = OutOfMemory if isinstance(self._failure, OutOfMemory) else ModelFailed
                    raise kind(
                        f'model "{self.model.name}" failed: {self.reason}; it is tried again in {left_s:.1f} s, or by '
                        f"POST /models/{self.model.name}/load"
                    )
            case ModelState.REGISTERED | ModelState.LOADING if not self.waits_for_load:
                raise ModelLoading(
                    f'model "{self.model.name}" is {self.state}; ask again when GET /health/ready answers 200'
                )

    async def wait_until_idle(self) -> None:
        """Returns when it has no visitor but those who wait for its next load."""
        while self._holders:
            await asyncio.shield(self.idle_future())

    def idle_future(self) -> asyncio.Future[None]:
        """Of a version that has references: done when the last of them leaves. To be looked at, never cancelled."""
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        return self._idle

    def begin_load(self) -> None:
        self._state = ModelState.LOADING

    def start(self, instances: LoadedModel, load_s: float) -> None:
        """Takes loaded and warmed-up instances into service, each on a thread of its own."""
        self._serving = start_serving(self.model, self.version, instances)
        self._last_spec = self._serving.model.spec
        self._holders |= self._awaiting_load
        self._awaiting_load.clear()
        self.load_s = load_s
        self.model.loads[self.version] += 1
        self.serving_id = next(_serving_ids)
        self.ready_since_s = self._clock()
        self.waits_for_load = True
        self._state, self._failure, self._failures = ModelState.READY, None, 0

    def fail(self, failure: RoundhouseError) -> None:
        """Its load failed: it is tried again for whoever asks for it, later each time."""
        self._state = ModelState.FAILED
        self.waits_for_load = True
        self._note_failure(failure)

    def defer_load(self) -> None:
        """There is no room for it now: who asks for it later waits for its load."""
        self._state = ModelState.REGISTERED
        self.waits_for_load = True

    def unload(self, state: ModelState) -> None:
        """Of what is not loaded: it is in `state` from now on."""
        self._state, self._next_state, self._failure, self._failures = state, state, None, 0

    def begin_draining(self, next_state: ModelState) -> None:
        """From now on nobody new is taken. `next_state`: the state that it will be in when it has left."""
        self._state = ModelState.DRAINING
        self._next_state = next_state

    def resume(self) -> None:
        """It does not leave after all."""
        if self._serving is not None:
            self._state = ModelState.READY

    async def close(self) -> None:
        """Ends the instances, which nobody uses any more."""
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.dispatcher.close()

    def abort(self, message: str) -> None:
        """Lets the instances go without waiting for anything: those who wait for answers get Draining."""
        serving, self._serving = self._serving, None
        self._state, self._next_state, self._failure = ModelState.UNLOADED, ModelState.UNLOADED, None
        if serving is not None:
            serving.dispatcher.abort(message)

    def _in_service(self) -> Serving:
        serving = self._serving
        if serving is None or serving.dispatcher.is_dead:
            raise ModelFailed(f'model "{self.model.name}" failed: its device thread ended')
        self.last_used_s = self._clock()
        return serving

    def _note_failure(self, failure: RoundhouseError) -> None:
        """Once for each death: a death that is noted is a failed state of its own until the next load."""
        if self.has_died and self._failure is not None:
            return
        self._failure = failure
        self._retry_at_s = self._clock() + min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
