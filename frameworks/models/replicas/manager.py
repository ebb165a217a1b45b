"""Give the requests of a worker the models of the server: look them up, and wait for loads of the supervisor."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog

from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import Draining, InvalidModel, ModelFailed, ModelNotFound
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.process.wire.serialization import error_from_plain
from frameworks.engine.threads import EngineThreads
from frameworks.models.replicas.applied_models import AppliedModels
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.engines import WorkerEngines
from frameworks.models.replicas.identities import Identities
from frameworks.models.replicas.messages import LoadEnded, LoadForRequest, LocalCounts, StateSent, Uses, VersionUse
from frameworks.models.replicas.serving import ReplicaVersion, Serving
from frameworks.models.residency.loader import Loader
from frameworks.models.residency.subrequests import SubRequests
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.device_clock import SharedDevices
from frameworks.scheduling.shared_limits import SharedLimits
from memory.pooled_arrays import PooledArrays


class _SharedLoad:
    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.waiting = 0


class SharedLoads:
    """Owned by the event loop."""

    def __init__(self, load: Callable[[ReplicaVersion], Awaitable[None]]) -> None:
        """`load(version)`: called once for all requests that wait at the same time, and cancelled with the last one."""
        self._load = load
        self._loads: dict[ReplicaVersion, _SharedLoad] = {}

    def __len__(self) -> int:
        return len(self._loads)

    async def join(self, version: ReplicaVersion) -> None:
        """Wait for the load of a version. Raises its errors, and Draining after `close`."""
        load = self._loads.get(version)
        # A load that is done is forgotten at the end of the round: the request needs another one.
        if load is None or load.task.done():
            task = asyncio.get_running_loop().create_task(self._run(version))
            load = self._loads[version] = _SharedLoad(task)
            task.add_done_callback(partial(self._end, version, load))
        load.waiting += 1
        try:
            await asyncio.shield(load.task)
        except asyncio.CancelledError:
            if load.task.cancelled():
                raise Draining(Draining.UNANSWERED) from None
            raise
        finally:
            load.waiting -= 1
            if not load.waiting and not load.task.done():
                # At once: a request that arrives now needs a load of its own.
                self._forget(version, load)
                load.task.cancel()

    def close(self) -> None:
        """Cancel all loads."""
        for load in self._loads.values():
            load.task.cancel()

    async def _run(self, version: ReplicaVersion) -> None:
        await self._load(version)

    def _end(self, version: ReplicaVersion, load: _SharedLoad, task: asyncio.Task[None]) -> None:
        self._forget(version, load)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: all requests may be cancelled

    def _forget(self, version: ReplicaVersion, load: _SharedLoad) -> None:
        if self._loads.get(version) is load:
            del self._loads[version]


PERIOD_S = 0.25
"""Time between two reports."""


class UseReports:
    """Sends only what has changed. Owned by the event loop."""

    def __init__(self, link: ControlLink, servings: Mapping[int, Serving]) -> None:
        """`servings`: the loads of the worker, by number."""
        self._link = link
        self._servings = servings
        self._sent: dict[int, VersionUse] = {}
        self._start_timer()

    def close(self) -> None:
        """Report no more."""
        self._timer.cancel()

    def report_counts(self, serving: Serving) -> None:
        """Send the growth of the counts of a model that runs here."""
        counts = serving.growth.take(())
        if counts is not None:
            prepare = serving.prepare
            self._link.send(LocalCounts(prepare.name, prepare.version, counts.batches, counts.steps))

    def report(self) -> None:
        """Report all changes now."""
        uses: dict[int, VersionUse] = {}
        for number, serving in self._servings.items():
            version = serving.version
            if version is not None:
                uses[number] = VersionUse(number, version.references, version.last_used_s)
            self.report_counts(serving)
        changed = [use for number, use in uses.items() if self._sent.get(number) != use]
        self._sent = uses
        if changed:
            self._link.send(Uses(changed))

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._report_again)

    def _report_again(self) -> None:
        self._start_timer()
        self.report()


log = structlog.get_logger(__name__)


class ReplicaManager:
    """Implement ServedModels in a worker. Owned by the event loop."""

    def __init__(
        self,
        link: ControlLink,
        loader: Loader,
        performance: PerformanceSettings,
        scheduling: SchedulingSettings,
        arrays: PooledArrays | None = None,
        shared_limits: SharedLimits | None = None,
    ) -> None:
        """`link`: to the supervisor, not yet open. `loader`: of small models that run here; `arrays`: their pool for
        large batches. `shared_limits`: the counts of all processes; None: those of this one.
        """
        self._link = link
        self._loader = loader
        self._threads = EngineThreads()
        identities = Identities(performance, scheduling, SharedDevices(arrays), self._threads, shared_limits)
        self._models = AppliedModels(link, WorkerEngines(link, loader), identities)
        self.slots_by_name: Mapping[str, ModelSlot] = self._models.slots_by_name
        self.parts = SubRequests(self, scheduling.max_queue_size)
        """As of the manager of a single server."""
        self.composites = loader.composites
        """As of the manager of a single server."""
        self._uses = UseReports(link, self._models.servings)
        self._models.before_drained = self._uses.report_counts
        self._loads = SharedLoads(self._load)
        self.has_state: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the worker has the state of all models, and the engines of all that are ready."""
        link.handle(StateSent, self._note_state)

    @property
    def slots(self) -> list[ModelSlot]:
        return list(self._models.slots.values())

    def slot(self, name: str) -> ModelSlot:
        try:
            return self.slots_by_name[name]
        except KeyError:
            raise ModelNotFound(name, self.slots_by_name) from None

    @property
    def is_idle(self) -> bool:
        """Whether no model computes, and none is being opened or closed."""
        return not any(serving.is_busy or serving.is_running for serving in self._models.servings.values())

    def check_integrity(self) -> None:
        """Raise AssertionError where an idle model holds sequences or memory of requests."""
        for serving in self._models.servings.values():
            if serving.engine is not None:
                serving.engine.check_integrity()

    def report_uses(self) -> None:
        """Report counts and uses of models that have changed: the supervisor has them before any later message."""
        self._uses.report()

    async def wait_for(self, version: ModelVersion, permit: Permit) -> None:
        """Let the supervisor load a version for a request, as `ModelResidency.wait_for`."""
        assert isinstance(version, ReplicaVersion), "the worker makes all versions"
        if self._models.is_closing:
            raise Draining(Draining.REFUSED)
        if version.state is ModelState.DRAINING:
            permit.release_version()  # a reference to dead instances would block their end
            while version.state is ModelState.DRAINING and self._models.is_current(version):
                await version.change()
                if self._models.is_closing:
                    raise Draining(Draining.REFUSED)
            return
        if version.is_ready or not self._models.is_current(version):
            return
        version.check_may_load()
        version.acquire_on_load(permit)
        try:
            await self._loads.join(version)
        except InvalidModel as error:
            permit.release_version()
            raise ModelFailed.because(f"{version} failed to load", error) from error
        except BaseException:
            permit.release_version()
            raise

    async def close(self, drain_timeout_s: float) -> None:
        """Close all engines when their requests have ended; fail those that are left after the timeout."""
        self._uses.close()
        self._loads.close()
        try:
            async with asyncio.timeout(drain_timeout_s):
                await self._models.close()
        except TimeoutError:
            log.warning(
                "drain timed out", inflight={s.name: s.requests.inflight for s in self.slots if s.requests.inflight}
            )
        await self._models.abort(Draining.UNANSWERED)
        self._loader.close()
        self._threads.close()

    async def _load(self, version: ReplicaVersion) -> None:
        """Wait until a version is ready, or another one may have to answer. Raises why it cannot be loaded."""
        serving = self._models.servings.get(version.ready_serving)
        if serving is not None:
            opening = serving.open()
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.result()
            return
        name = version.model.name
        try:
            reply = await self._link.ask(lambda number: LoadForRequest(number, name, version.version))
        except ChannelLost:
            raise Draining(Draining.UNANSWERED) from None
        assert isinstance(reply, LoadEnded), f"expected LoadEnded, got {type(reply).__name__}"
        # The state that the load has reached was applied before the reply.
        if reply.error is not None:
            raise error_from_plain(reply.error)

    def _note_state(self, _: StateSent) -> None:
        if not self.has_state.done():
            self.has_state.set_result(None)
