"""Hold one version of a model: its state, the references of requests, and its loaded instances."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from frameworks.core.devices import Device
from frameworks.core.errors import ModelFailed, ModelLoading, ModelUnloaded, RoundhouseError
from frameworks.engine.contract import Engine
from frameworks.generation.sequences import StepStats
from frameworks.models.versions.identity import ModelIdentity, new_serving_id
from frameworks.models.versions.states import LoadFailures, ModelState
from frameworks.models.versions.version_folders import FilesState
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.sequences.state_store import SequenceUse
from frameworks.types import Array, ModelSpec

if TYPE_CHECKING:
    from frameworks.sources.store import Fetched

log = structlog.get_logger(__name__)


def _no_bytes() -> int:
    return 0


class VersionNotLoaded(ModelLoading):
    """The version has to be loaded first. The request pipeline waits for the load; no caller sees this error."""

    def __init__(self, version: "ModelVersion") -> None:
        super().__init__(f"{version} is not loaded")
        self.version = version


class Holders:
    """The requests that hold a reference, or wait for a load. Owned by the event loop.

    `awaiting_load`: they become holders of the instances when the version is loaded. Draining the old instances must
    not wait for them.
    """

    def __init__(self) -> None:
        self.loaded: set[Permit] = set()
        self.awaiting_load: set[Permit] = set()
        self._idle: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.loaded) + len(self.awaiting_load)

    def __iter__(self) -> Iterator[Permit]:
        yield from (*self.loaded, *self.awaiting_load)

    def note_loaded(self) -> None:
        """Give the requests that wait references to the loaded instances."""
        self.loaded |= self.awaiting_load
        self.awaiting_load.clear()

    def release(self, permit: Permit) -> None:
        """Forget a request. The last one of the loaded instances completes `idle_future`."""
        self.awaiting_load.discard(permit)
        self.loaded.discard(permit)
        if not self.loaded and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def idle_future(self) -> asyncio.Future[None]:
        """Return a future that is done when no request holds a reference to the loaded instances. Do not cancel it."""
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        return self._idle


class ModelVersion:
    """One version of a model. Owned by the event loop.

    A request holds a reference from its routing until its response is sent. A version is drained before it is unloaded.
    """

    def __init__(self, model: ModelIdentity, version: str, path: Path, clock: Callable[[], float] = time.monotonic):
        """`path` is absolute."""
        self.model = model
        self.version = version
        self.path = path
        self.isolation = model.isolation
        """Where it runs: of a model of several workers this is known after its first load."""
        self.is_background = False  # whether its process has the low priority of a shadow
        self._clock = clock
        self.phase = ModelState.REGISTERED
        """The state apart from failures of a loaded engine."""
        self.next_state = ModelState.UNLOADED
        """The state after a drain."""
        self.failures = LoadFailures(clock)
        self.load_s = 0.0
        self.memory_bytes = 0
        """As measured at the last load, on all devices; kept after an unload, for the next load."""
        self.replica_bytes: Callable[[], int] = _no_bytes
        """Returns the memory that it takes in the replicas of a cluster."""
        self.process_bytes: Sequence[int] = ()
        """The same of each process; of a version without processes one number."""
        self.memory_on: Mapping[str, int] = {}
        """The same for each memory, such as `cuda:0`."""
        self.measured_by_kind: Mapping[str, int] = {}
        """The same of the largest process, by the kind of its device."""
        self.files: FilesState = frozenset()
        """The files of the last load."""
        self.fetched: Fetched | None = None
        """The download of the files; None: the next load lists the source again, or the path is local."""
        self.serving_id = 0
        """Unique for each load: cached responses of one load are not valid for the next."""
        # Times of the clock.
        self.last_used_s: float | None = None
        self.ready_since_s = 0.0
        self._engine: Engine | None = None
        self._last_spec: ModelSpec | None = None
        self._holders = Holders()
        # Their own functions: a call in between would take its time for each request.
        self.release, self.idle_future = self._holders.release, self._holders.idle_future
        # Held by a load or an unload; one runs at a time.
        self.lock = asyncio.Lock()
        self.load_task: asyncio.Task[None] | None = None
        """The running load; None while there is none."""
        self.waits_for_load = model.entry.load == "lazy"
        """Whether requests wait for a load: not for the first one of a start-up model, which the server awaits."""

    def __str__(self) -> str:
        return f'model "{self.model.name}", version "{self.version}"'

    @property
    def state(self) -> ModelState:
        """The state; a version whose device threads or process have ended is `failed`, before the next request too."""
        return ModelState.FAILED if self.has_died or self._outage is not None else self.phase

    @property
    def reason(self) -> str | None:
        """The reason of the state `failed`, which may have paths of the machine."""
        failure = self.failures.last
        return self._failed_because(None if failure is None else failure.message)

    @property
    def public_reason(self) -> str | None:
        """The reason of the state `failed` for all callers."""
        failure = self.failures.last
        return self._failed_because(None if failure is None else failure.public)

    def _failed_because(self, load_failure: str | None) -> str | None:
        if self.has_died:
            return ModelFailed.THREAD_ENDED
        if self._outage is not None:
            return self._outage
        return load_failure if self.phase is ModelState.FAILED else None

    @property
    def has_died(self) -> bool:
        """Whether the device threads of all instances have ended."""
        return self.phase is ModelState.READY and self._engine is not None and self._engine.is_dead

    @property
    def _outage(self) -> str | None:
        """Why a loaded version cannot answer until its process runs again."""
        return self._engine.outage if self._engine is not None and self.phase is ModelState.READY else None

    @property
    def is_ready(self) -> bool:
        """Whether the version is loaded and accepts requests."""
        engine = self._engine
        if engine is None or self.phase is not ModelState.READY:
            return False
        return not engine.is_dead and engine.outage is None

    @property
    def is_running(self) -> bool:
        """Whether an instance is computing."""
        return self._engine is not None and self._engine.is_running

    @property
    def spec(self) -> ModelSpec | None:
        """The spec of the loaded version; None while it is not loaded."""
        return self._engine.model.spec if self._engine else None

    @property
    def loads(self) -> int:
        """The number of loads of a version of this name."""
        return self.model.loads[self.version]

    @property
    def total_bytes(self) -> int:
        """The memory of the version here and in the replicas of a cluster; 0 while it is not loaded."""
        return 0 if self._engine is None else self.memory_bytes + self.replica_bytes()

    @property
    def is_in_use(self) -> bool:
        """Whether a request holds a reference, here or in another process, or a sequence has a state."""
        return self.references > 0 or bool(self.sequences)

    @property
    def seconds_unused(self) -> float | None:
        """Seconds since the last use; None before the first use."""
        return None if self.last_used_s is None else self._clock() - self.last_used_s

    @property
    def references(self) -> int:
        """The number of requests that hold a reference, here or in other processes."""
        elsewhere = 0 if self._engine is None else self._engine.references
        return len(self._holders) + elsewhere

    def permits(self) -> Iterator[Permit]:
        """Yield the permits of the requests that hold a reference."""
        return iter(self._holders)

    def is_held_by(self, permit: Permit) -> bool:
        """Whether the request holds a reference to the loaded instances."""
        return permit in self._holders.loaded

    def spec_for(self, permit: Permit) -> ModelSpec:
        """Return the spec for decoding a request.

        Raises VersionNotLoaded where the request has to wait for a load, and the errors of `check_may_load`.
        """
        engine = self._engine
        is_alive = engine is not None and not engine.is_dead
        if engine is not None and is_alive and (self.phase is ModelState.READY or permit in self._holders.loaded):
            return engine.model.spec
        self.check_may_load()
        raise VersionNotLoaded(self)

    def known_spec(self) -> ModelSpec | None:
        """Return the spec of the last load, also after an eviction; None before the first load.

        Raises the errors of `check_may_load`.
        """
        if not self.is_ready:
            self.check_may_load()
        return self._last_spec

    def acquire(self, permit: Permit, spec: ModelSpec) -> bool:
        """Give the request a reference. Returns False where the instances of `spec` do not accept requests any more."""
        engine = self._engine
        if engine is None or engine.model.spec is not spec:
            return False
        if engine.is_dead or (self.phase is not ModelState.READY and permit not in self._holders.loaded):
            return False
        self._holders.loaded.add(permit)
        if permit.held is None:
            permit.held = self
        else:
            permit.hold(self)
        return True

    def acquire_on_load(self, permit: Permit) -> None:
        """Give a request that waits for the load a reference: the version is not evicted before it has answered."""
        assert self.phase is not ModelState.DRAINING, "the load waits for the end of the drain"
        permit.release_version()  # it may hold a reference to dead instances
        self._holders.awaiting_load.add(permit)
        permit.hold(self)

    def measure(self, measured: Sequence[tuple[Device, int]]) -> None:
        """Note the measured memory of a load: the device and the bytes of each process."""
        memory_on: Counter[str] = Counter()
        by_kind: dict[str, int] = {}
        for device, size in measured:
            memory_on[device.memory_id] += size
            by_kind[device.kind] = max(size, by_kind.get(device.kind, 0))
        self.memory_bytes = memory_on.total()
        self.process_bytes = [size for _, size in measured]
        self.memory_on, self.measured_by_kind = memory_on, by_kind

    def touch(self) -> None:
        """Note a use of the version."""
        self.last_used_s = self._clock()

    def engine(self) -> Engine:
        """Return the engine for a request. Raises ModelFailed for a dead version."""
        engine = self._engine
        if engine is None or engine.is_dead:
            raise ModelFailed.thread_ended(self.model.name)
        self.last_used_s = self._clock()
        return engine

    def lease_body(self, nbytes: int) -> Array | None:
        """As Engine.lease_body; None where the version is not loaded."""
        return None if self._engine is None else self._engine.lease_body(nbytes)

    @property
    def step_stats(self) -> list[StepStats]:
        """The stats of each instance of a generating model; empty for other models."""
        return self._engine.stats if self._engine is not None else []

    @property
    def sequences(self) -> SequenceUse:
        """The sequences of a model with a state, by tenant; empty for other models."""
        return self._engine.sequences if self._engine is not None else {}

    def check_integrity(self) -> None:
        """Raise AssertionError where an idle instance holds sequences or memory of requests."""
        if self._engine is not None:
            self._engine.check_integrity()

    def check_may_load(self) -> None:
        """Raise the error that prevents a load for a request.

        ModelLoading before the first load at start-up, ModelUnloaded, and ModelFailed or OutOfMemory until the next
        retry.
        """
        match self.state:
            case ModelState.UNLOADED | ModelState.DRAINING if self.next_state is ModelState.UNLOADED:
                raise ModelUnloaded(
                    f'model "{self.model.name}" was unloaded; POST /models/{self.model.name}/load loads it again'
                )
            case ModelState.FAILED:
                if self.has_died:
                    self._record_failure(ModelFailed(ModelFailed.THREAD_ENDED))
                self.failures.check_retry(self.model.name, self.reason, self.public_reason)
            case ModelState.REGISTERED | ModelState.LOADING if not self.waits_for_load:
                raise ModelLoading(
                    f'model "{self.model.name}" is {self.state}; try again when GET /health/ready returns 200'
                )

    async def wait_until_idle(self) -> None:
        """Wait until no request holds a reference to the loaded instances."""
        while self._holders.loaded:
            await asyncio.shield(self.idle_future())
        if self._engine is not None:
            await self._engine.drained()

    def end_requests(self) -> None:
        """Fail the requests that wait or generate with Draining. Batches that are being computed are answered."""
        if self._engine is not None and not self._engine.has_ended_requests:
            log.warning("unload ends requests", model=self.model.name, version=self.version, requests=self.references)
            self._engine.end_requests()

    def begin_load(self) -> None:
        """Enter the state `loading`."""
        self.phase = ModelState.LOADING
        self.model.changed()

    def start(self, engine: Engine, load_s: float, serving_id: int | None = None) -> None:
        """Start to serve with an engine whose model is warmed up. `serving_id`: None takes the next one."""
        self._engine = engine
        self._last_spec = self._engine.model.spec
        self._holders.note_loaded()
        self.load_s = load_s
        self.model.loads[self.version] += 1
        self.serving_id = new_serving_id() if serving_id is None else serving_id
        self.ready_since_s = self._clock()
        self.waits_for_load = True
        self.phase = ModelState.READY
        self.failures.clear()
        self.model.changed()

    def fail(self, failure: RoundhouseError) -> None:
        """Note a failed load; later requests retry it, after a delay that grows with each failure."""
        self.phase = ModelState.FAILED
        self.waits_for_load = True
        self._record_failure(failure)
        self.model.changed()

    def defer_load(self) -> None:
        """Leave the load to the next request, which waits for it."""
        self.phase = ModelState.REGISTERED
        self.waits_for_load = True
        self.model.changed()

    def unload(self, state: ModelState) -> None:
        """Set the state of a version that is not loaded."""
        self.phase = self.next_state = state
        self.failures.clear()
        self.model.changed()

    def begin_draining(self, next_state: ModelState) -> None:
        """Accept no new requests. `next_state`: the state after the unload."""
        self.phase = ModelState.DRAINING
        self.next_state = next_state
        self.model.changed()

    def resume(self) -> None:
        """Return to service after a cancelled drain."""
        if self._engine is not None:
            self.phase = ModelState.READY
            self.model.changed()

    async def close(self) -> None:
        """Close the instances, which no request uses any more."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    def abort(self, message: str) -> None:
        """Close the instances without waiting; their requests fail with Draining."""
        engine, self._engine = self._engine, None
        self.phase = self.next_state = ModelState.UNLOADED
        self.failures.clear()
        self.model.changed()
        if engine is not None:
            engine.abort(message)

    def _record_failure(self, failure: RoundhouseError) -> None:
        """Note a failure and the time of the next retry; the death of a thread is noted once."""
        if not self.has_died or self.failures.last is None:
            self.failures.record(failure)
