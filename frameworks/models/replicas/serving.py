"""Hold one load of a version in a worker: open its engine, and close it when its requests have ended."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog

from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import InvalidModel, RoundhouseError, as_failed
from frameworks.engine.contract import Engine
from frameworks.engine.process.wire.counts import CountsDelta
from frameworks.engine.process.wire.serialization import error_from_plain
from frameworks.models.replicas.engines import WorkerEngines
from frameworks.models.replicas.messages import Prepare, VersionState
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion


class ReplicaVersion(ModelVersion):
    """A version whose loads the supervisor decides. Owned by the event loop."""

    def __init__(self, model: ModelIdentity, published: VersionState) -> None:
        super().__init__(model, published.version, Path(os.fsdecode(published.path)))
        self.published = published
        """The state that was published last."""
        self._change: asyncio.Future[None] | None = None

    @property
    def ready_serving(self) -> int:
        """The number of the load that is ready at the supervisor, perhaps before it is here; 0 for none."""
        return self.published.serving if self.published.state == ModelState.READY else 0

    def enter(self, published: VersionState) -> None:
        """Enter the published state of a version that has no engine here."""
        self.phase, self.next_state = ModelState(published.state), ModelState(published.next_state)
        self.waits_for_load = published.waits_for_load
        failure = published.failure
        error = None if failure is None else as_failed(error_from_plain(failure), "its load")
        self.failures.follow(error, published.retry_in_s)

    def note_change(self) -> None:
        """Wake the requests that wait for a change."""
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)

    async def change(self) -> None:
        """Wait until the version has another state or engine, or another object has replaced it."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._change)


log = structlog.get_logger(__name__)


class Serving:
    """Owned by the event loop. The engine is opened again if it is wanted again after its end."""

    def __init__(
        self,
        prepare: Prepare,
        source: ModelVersion,
        engines: WorkerEngines,
        opened: Callable[["Serving"], None],
        failed: Callable[["Serving", RoundhouseError], None],
    ) -> None:
        """`source`: the model and the path to load from. `opened` and `failed`: called after each attempt to open."""
        self.prepare = prepare
        self.number = prepare.serving
        self._source = source
        self._engines = engines
        self._opened = opened
        self._failed = failed
        self.growth = CountsDelta()
        """Of the counts of a model in this worker; a process reports its counts to the supervisor."""
        self.version: ReplicaVersion | None = None
        """The version whose requests use the engine; None before it is ready."""
        self._open_engine: Engine | None = None
        self.is_wanted = True
        """False while the load is drained, and after that."""
        self.was_ready = False
        """Whether the supervisor has published it as ready."""
        self._opening: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def engine(self) -> Engine | None:
        """The engine, unless it is being closed."""
        return None if self._closing is not None else self._open_engine

    @property
    def is_busy(self) -> bool:
        """Whether the engine is being opened or closed, or is drained."""
        return any(task is not None and not task.done() for task in (self._opening, self._draining, self._closing))

    @property
    def is_running(self) -> bool:
        """Whether the engine computes."""
        return self.engine is not None and self.engine.is_running

    @property
    def is_usable(self) -> bool:
        """Whether the engine accepts requests."""
        engine = self.engine
        return engine is not None and not engine.is_dead and not engine.has_ended_requests

    def open(self) -> "asyncio.Task[None]":
        """End a drain and get the engine, unless it is open or being opened. The task raises as WorkerEngines.get."""
        self.is_wanted = True
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        opening = self._opening
        if opening is None or opening.cancelling() or (opening.done() and not self.is_usable):
            opening = self._opening = _start(self._open(opening))
        return opening

    def drain(self, report: Callable[["Serving"], None]) -> None:
        """Close the engine when no request uses it, then call `report`."""
        self.is_wanted = self.was_ready = False
        if self._draining is not None:
            self._draining.cancel()
        self._draining = _start(self._drain(report))

    async def drained(self) -> None:
        """Wait until the engine is closed."""
        if self._draining is not None:
            await asyncio.wait([self._draining])

    async def abort(self, message: str) -> None:
        """Close the engine without waiting; its requests fail with Draining."""
        tasks = [task for task in (self._opening, self._draining, self._closing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self.version is not None:
            self.version.abort(message)
        elif self.engine is not None:
            self.engine.abort(message)

    async def _open(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        if self._open_engine is not None and not self.is_usable:
            await self._close_unusable()
        if self._open_engine is None:
            try:
                self._open_engine = await self._get_engine()
            except RoundhouseError as error:
                self._failed(self, error)
                raise
        self._opened(self)

    async def _get_engine(self) -> Engine:
        try:
            return await self._engines.get(self._source, self.prepare, self.growth.counts)
        except (RoundhouseError, ChannelLost):
            raise
        except Exception as error:
            # The errors of libraries on damaged files are not ours.
            log.exception("model failed to load", model=self.prepare.name, version=self.prepare.version)
            raise InvalidModel(f"{self._source} cannot be loaded: {type(error).__name__}: {error}") from error

    async def _close_unusable(self) -> None:
        """Close an engine whose threads have ended, or that refuses requests; or wait until it is closed."""
        if self.version is not None:
            self.version.begin_draining(ModelState.REGISTERED)
            await self.version.wait_until_idle()
        await self._close()

    async def _drain(self, report: Callable[["Serving"], None]) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self.version is not None:
            await self.version.wait_until_idle()
        await self._close()
        report(self)

    async def _close(self) -> None:
        """Close the engine, also if the caller is cancelled."""
        if self._open_engine is not None and self._closing is None:
            self._closing = _start(self._close_engine(self._open_engine))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close_engine(self, engine: Engine) -> None:
        version, self.version = self.version, None
        try:
            if version is not None:
                await version.close()
            else:
                await engine.close()
            await self._engines.released(self.prepare)
        finally:
            self._open_engine = self._closing = None


def _start(work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_retrieve)
    return task


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Mark the error of a task as retrieved: none may wait for the task."""
    if not task.cancelled():
        task.exception()
