"""Load, evict and unload versions: which of them are in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import structlog

from frameworks.core.addresses import SourceAddress
from frameworks.core.devices import DeviceManager
from frameworks.core.errors import (
    Draining,
    EvictionNeeded,
    InvalidModel,
    ModelFailed,
    ModelUnloaded,
    OutOfMemory,
    RoundhouseError,
    as_failed,
)
from frameworks.core.progress import Work, working
from frameworks.engine.contract import Engine
from frameworks.models.residency.ledger import LoadOptions, MemoryLedger
from frameworks.models.residency.loader import Loaded, Loader
from frameworks.models.versions.identity import ModelIdentity, new_serving_id
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.admission import Permit
from memory.sizes import format_size

log = structlog.get_logger(__name__)


Outcome = TypeVar("Outcome")

StartEngine = Callable[[ModelVersion, Loaded, int], Awaitable[Engine]]
"""Return the engine of a loaded version, when requests can use it wherever they are. The number is that of the load.

Raises RoundhouseError after the model is closed.
"""

Fetch = Callable[[ModelVersion], Awaitable[None]]
"""Let the path of a version have its files."""

# A measurement differs from the one before only by what else the process allocated meanwhile.
_MAX_LOAD_ATTEMPTS = 3


class ModelResidency:
    """Owned by the event loop."""

    def __init__(self, loader: Loader, devices: DeviceManager, min_residency_s: float = 0.0) -> None:
        """`min_residency_s`: a version is not evicted earlier for a request."""
        self.ledger = MemoryLedger(devices, self._evict, min_residency_s=min_residency_s)
        self._loader = loader
        self._tasks: set[asyncio.Task[Any]] = set()
        # How many callers wait for each load and each command that runs.
        self._callers: dict[asyncio.Task[Any], int] = {}
        self._is_closing = False
        self._on_unloaded: list[Callable[[str], None]] = []
        self.start_engine: StartEngine = _start_here
        """Replaced where requests are in other processes."""
        self.fetch: Fetch = _fetch_nothing
        """Replaced where models may have addresses."""

    def on_unloaded(self, callback: Callable[[str], None]) -> None:
        """Call `callback(model)` after each unload of a version: its files may differ at the next load."""
        self._on_unloaded.append(callback)

    @property
    def is_idle(self) -> bool:
        """Whether no model computes, and none is being loaded or unloaded."""
        return not self._tasks and not any(version.is_running for version in self.ledger.versions)

    def check_integrity(self) -> None:
        """Raise AssertionError where an idle model holds sequences or memory of requests."""
        for version in self.ledger.versions:
            version.check_integrity()

    async def wait_for(self, version: ModelVersion, permit: Permit) -> None:
        """Load a version for a request, which then holds a reference to it.

        Returns without a reference where another version may have to answer; the caller then routes the request again.
        Raises ModelFailed, OutOfMemory, Draining; ModelUnloaded where an operator unloaded the version meanwhile.
        """
        if version.state is ModelState.DRAINING:
            # The request arrived after the unload began: wait for its end, then load again or use the successor.
            permit.release_version()  # a reference to dead instances would block their unload
            async with version.lock:
                pass
            if self._is_closing:
                raise Draining(Draining.REFUSED)
            return
        if version.is_ready:
            return
        version.check_may_load()
        version.acquire_on_load(permit)
        try:
            with suppress(EvictionNeeded):  # it joined a load at start-up, which may not evict; the next load may
                await self._join_load(version)
        except (InvalidModel, ModelFailed) as error:
            permit.release_version()
            raise ModelFailed.because(
                f"{version} failed to load", error, version.failures.retry_in_s or None
            ) from error
        except BaseException:
            permit.release_version()
            raise

    async def load(self, version: ModelVersion, *, may_evict: bool = True, keep: ModelVersion | None = None) -> None:
        """Load a version by an operator's command; return when it is ready. `keep`: a version not to be evicted.

        It goes before the loads for requests, also where it joins one. The models of a composite model are loaded as
        for a request.

        Raises InvalidModel, OutOfMemory, Draining; EvictionNeeded where it must evict and may not.
        """
        # A composite model reserves no memory. It waits for the loads of its models, which must not wait for it.
        with nullcontext() if version.model.is_composite else self.ledger.ordered(version):
            while not version.is_ready:
                try:
                    await self._join_load(version, LoadOptions(may_evict, keep))
                    return
                except ModelUnloaded:
                    continue  # it joined the load of a request, and an unload command came first
                except EvictionNeeded:
                    if not may_evict:
                        raise

    async def load_for_clients(self, version: ModelVersion) -> None:
        """Load a version for requests that wait in other processes; return when it is ready.

        After the loads that operators have ordered, and with the minimum residency of others, as for requests here.
        Raises InvalidModel, OutOfMemory, Draining.
        """
        await self._join_load(version, LoadOptions())

    def note_evicted(self, version: ModelVersion) -> None:
        """Note that a version was evicted where it runs, outside of this process. The next request loads it again."""
        if version.phase is ModelState.READY and not self._is_closing:
            self._start(self._evict(version))

    async def run_to_end(self, command: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run an operator's command to its end, even if the caller is cancelled, unless the server ends.

        Raises its errors, and Draining.
        """
        return await self._wait_for_task(self._start(command))

    async def retire(self, version: ModelVersion) -> None:
        """Unload a version that was replaced, even if the caller is cancelled."""
        await asyncio.shield(self._start(self.unload(version)))

    async def unload(
        self, version: ModelVersion, state: ModelState = ModelState.UNLOADED, deadline_s: float | None = None
    ) -> None:
        """Drain the version's references, then close it and release its memory.

        `deadline_s`: time of the loop at which the requests that are left fail with Draining; None: wait for all. The
        version returns to service where this is cancelled while it drains.
        """
        async with version.lock:
            await self._unload(version, state, deadline_s)

    def end_draining(self, model: ModelIdentity, version: str | None) -> None:
        """End the requests of the versions of a model that are being drained. `version`: None for all of them."""
        for each in self.ledger.versions:
            if each.model is model and version in (None, each.version) and each.state is ModelState.DRAINING:
                each.end_requests()

    def close(self) -> None:
        """Refuse further loads. Cancel those that no caller waits for: a load may take minutes."""
        self._is_closing = True
        for task, callers in self._callers.items():
            if not callers:
                task.cancel()

    async def unload_all(self) -> None:
        """Unload every version that is loaded or being loaded, including those without a registered model."""
        while self.ledger.versions or self._tasks:
            await asyncio.gather(*(self.unload(version) for version in self.ledger.versions))
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def abort(self, message: str) -> None:
        """Cancel the loads and close all versions at once; their requests fail with Draining."""
        for task in self._tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for version in self.ledger.versions:
            version.abort(message)
            self.ledger.release(version)

    async def _join_load(self, version: ModelVersion, options: LoadOptions | None = None) -> None:
        """Wait for the version's load, which all its callers share. The load continues if this caller is cancelled.

        `options`: None for a request, which does not load a version that an operator unloaded.
        """
        task = version.load_task
        if task is None:
            if self._is_closing:
                raise Draining(Draining.REFUSED)
            task = version.load_task = self._start(self._load_unless_ready(version, options))
        await self._wait_for_task(task)

    async def _wait_for_task(self, task: "asyncio.Task[Outcome]") -> Outcome:
        """Wait as one of the callers of a task, which continues if this caller is cancelled."""
        self._callers[task] = self._callers.get(task, 0) + 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Draining(Draining.UNANSWERED) from None
            raise
        finally:
            self._leave(task)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        if task.done():
            self._callers.pop(task, None)
            return
        self._callers[task] -= 1
        if self._is_closing and not self._callers[task]:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._callers.pop(task, None)
        self.ledger.notify()
        if not task.cancelled():
            task.exception()  # mark it as retrieved: all callers may be cancelled

    async def _load_unless_ready(self, version: ModelVersion, options: LoadOptions | None) -> None:
        try:
            async with version.lock:
                if version.is_ready:
                    return
                if options is None:
                    version.check_may_load()  # an operator's command may have come first
                elif version.state is ModelState.FAILED:
                    version.measured_by_kind = {}  # the measurement may include memory of others
                await self._load(version, options or LoadOptions())
        finally:
            version.load_task = None

    async def _load(self, version: ModelVersion, options: LoadOptions) -> None:
        if version.spec is not None:  # dead instances
            await self._unload(version, ModelState.REGISTERED)
        version.begin_load()
        self._report_unloaded(version)
        serving_id = new_serving_id()
        try:
            with working("load", version.model.name) as work:
                with self.ledger.fetching(version):
                    await self.fetch(version)
                loaded = await self._load_instances(version, options, work)
                engine = await self.start_engine(version, loaded, serving_id)
        except EvictionNeeded:
            version.defer_load()
            raise
        except RoundhouseError as error:
            error.rewrite(lambda message: _without_cache_path(version, message))
            # Callers do not get the paths in it.
            log.error("model failed to load", model=version.model.name, version=version.version, reason=error.message)
            self._fail(version, error)
            raise
        except asyncio.CancelledError:
            self._fail(version, Draining("its load was cancelled"))
            raise
        except Exception as error:
            # The errors of libraries on damaged files are not ours; the caller gets our own.
            log.exception("model failed to load", model=version.model.name, version=version.version)
            failure = as_failed(error, "its load")
            kind = _without_cache_path(version, failure.message)
            self._fail(version, InvalidModel(kind, failure.public))
            raise InvalidModel(f"{version} cannot be loaded: {kind}", failure.public) from error
        finally:
            self._loader.discard(version)
        version.files = loaded.files
        version.start(engine, loaded.load_s, serving_id)
        self.ledger.notify()
        _log_ready(version, loaded)

    async def _load_instances(self, version: ModelVersion, options: LoadOptions, work: Work) -> Loaded:
        """Return the version's instances; the ledger holds their measured memory. A composite model has none."""
        if version.model.is_composite:
            if not options.may_evict:
                self._loader.composites[version.model.framework].check_at_start(version)
            return await self._loader.load(version, [])
        work.phase("waits for other loads")
        needs = await self._loader.needs(version, lambda: self.ledger.is_ordered(version))
        for _ in range(_MAX_LOAD_ATTEMPTS):
            work.phase("waits for memory")
            devices = await self.ledger.reserve(version, needs, options)
            work.phase("waits for other loads")
            loaded = await self._loader.load(version, devices, lambda: self.ledger.is_ordered(version))
            version.measure(loaded.measured)
            try:
                if await self.ledger.record_measured(version, options):
                    return loaded
            except BaseException:
                loaded.close()
                raise
            # It is larger than estimated, and too few versions can be evicted now: reserve all of its memory first.
            loaded.close()
            await self._loader.reclaim_memory()
            self.ledger.release(version)
        raise OutOfMemory(
            f"{version} took more memory at each of {_MAX_LOAD_ATTEMPTS} loads, "
            f"{format_size(version.memory_bytes)} at the last"
        )

    def _fail(self, version: ModelVersion, error: RoundhouseError) -> None:
        version.fail(error)
        self.ledger.release(version)

    async def _unload(self, version: ModelVersion, state: ModelState, deadline_s: float | None = None) -> None:
        """Drain and close a version, with its lock held."""
        if version.spec is None:
            version.unload(state)
            return
        version.begin_draining(state)
        try:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await version.wait_until_idle()
            except TimeoutError:
                version.end_requests()
                await version.wait_until_idle()
        except asyncio.CancelledError:
            version.resume()
            self.ledger.notify()
            raise
        try:
            await version.close()
            if version.memory_bytes:  # else it was in a replica
                await self._loader.reclaim_memory()
        finally:
            version.unload(state)
            self.ledger.release(version)
            self._report_unloaded(version)

    async def _evict(self, version: ModelVersion) -> None:
        version.begin_draining(ModelState.REGISTERED)
        async with version.lock:
            if version.spec is not None:  # else an operator's command came first, and its state stays
                await self._unload(version, ModelState.REGISTERED)

    def _report_unloaded(self, version: ModelVersion) -> None:
        for callback in self._on_unloaded:
            callback(version.model.name)


def _without_cache_path(version: ModelVersion, message: str) -> str:
    """Return a message with the address of a model in place of the folder that its files were fetched into."""
    address = version.model.entry.path
    return message.replace(str(version.path), str(address)) if isinstance(address, SourceAddress) else message


async def _fetch_nothing(_: ModelVersion) -> None:
    pass


async def _start_here(version: ModelVersion, loaded: Loaded, _: int) -> Engine:
    return loaded.start(version)


def _log_ready(version: ModelVersion, loaded: Loaded) -> None:
    spec = loaded.spec
    log.info(
        "model ready",
        model=version.model.name,
        version=version.version,
        framework=version.model.framework,
        task=spec.task,
        device=spec.device,
        dtype=spec.dtype,
        providers=list(spec.providers) or None,
        memory_bytes=version.memory_bytes,
        instances=loaded.num_instances,
        load_s=round(version.load_s, 3),
        warm_up_s=round(loaded.warm_up_s, 3),
    )
    if version.model.entry.cache and spec.task == "generate":
        log.warning("cache has no effect on a model that generates text", model=version.model.name)
    if version.model.entry.token_ids and spec.task != "embed":
        log.warning("token_ids has no effect on a model that computes no embeddings", model=version.model.name)
