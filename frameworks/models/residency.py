"""Who is in memory: brings versions in, makes room for them, and sends out what has to leave."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import structlog

from frameworks.devices import DeviceManager
from frameworks.errors import (
    Draining,
    InvalidModel,
    ModelFailed,
    ModelUnloaded,
    NoRoomNow,
    OutOfMemory,
    RoundhouseError,
)
from frameworks.models.ledger import MemoryLedger, Order
from frameworks.models.loader import Loaded, Loader
from frameworks.models.version import ModelState, ModelVersion
from frameworks.scheduling.admission import Permit
from memory.sizes import format_size

log = structlog.get_logger(__name__)


Outcome = TypeVar("Outcome")

# A measurement is more than the one before only by what else the process did meanwhile.
_MOST_TRIES = 3


class ModelResidency:
    """Owned by the event loop."""

    def __init__(self, loader: Loader, devices: DeviceManager) -> None:
        self.ledger = MemoryLedger(devices, self._leaves)
        self._loader = loader
        self._flights: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self._when_unloaded: list[Callable[[str], None]] = []

    def when_unloaded(self, callback: Callable[[str], None]) -> None:
        """`callback(model)` is called whenever instances of a model are gone: the next may be of other files."""
        self._when_unloaded.append(callback)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is computed, loaded or sent out."""
        return not self._flights and not any(version.is_running for version in self.ledger.versions)

    def check_integrity(self) -> None:
        """Raises AssertionError, with what is wrong, where a model that has nothing to do holds something."""
        for version in self.ledger.versions:
            version.check_integrity()

    async def wait_for(self, version: ModelVersion, permit: Permit) -> None:
        """Brings in a version for a request, which it then serves before it may leave.

        Returns also when another version may have to answer instead: the request is routed again. Raises ModelFailed,
        OutOfMemory, Draining, and ModelUnloaded where a caller ordered it out meanwhile.
        """
        if version.state is ModelState.DRAINING:
            # It leaves; whoever came too late for it comes in again with it, or goes to its successor.
            permit.release_model()  # of instances that have died under it: they wait for their references
            async with version.change:
                pass
            if self._is_closing:
                raise Draining("the server is going down; it loads no more models")
            return
        if version.is_ready:
            return
        version.check_may_load()
        version.expect(permit)
        try:
            with suppress(NoRoomNow):  # a load of start-up's, which asks nobody to leave; the next one does
                await self._fly(version)
        except InvalidModel as error:
            permit.release_model()
            raise ModelFailed(f"{version} failed to load: {error.message}") from error
        except BaseException:
            permit.release_model()
            raise

    async def load(self, version: ModelVersion, *, may_evict: bool = True, beside: ModelVersion | None = None) -> None:
        """Loads a version by order; returns when it is ready. `beside`: who stays, whatever it costs.

        Raises InvalidModel, OutOfMemory, Draining; NoRoomNow where others would have to leave and may not be asked to.
        """
        while not version.is_ready:
            try:
                await self._fly(version, Order(may_evict, beside))
                return
            except ModelUnloaded:
                continue  # it shared a request's load, before which the version was ordered out
            except NoRoomNow:
                if not may_evict:
                    raise

    async def finish(self, order: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Carries out an order to its end, also if who gave it goes away. Raises what the order raises; Draining."""
        task = self._start(order)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Draining("the server went down before the order was carried out") from None
            raise

    async def retire(self, version: ModelVersion) -> None:
        """Sends a version out also if the caller leaves: another one serves in its place."""
        await asyncio.shield(self._start(self.unload(version)))

    async def unload(self, version: ModelVersion, state: ModelState = ModelState.UNLOADED) -> None:
        """Answers the version's references, takes nobody new, then lets it go and gives its memory back.

        Cancelled while references are being answered, it leaves the version in service.
        """
        async with version.change:
            await self._send_out(version, state)

    def close(self) -> None:
        """No load begins any more."""
        self._is_closing = True

    async def empty(self) -> None:
        """Sends out who is in memory and who is still on the way there, whether a model knows them or not."""
        while self.ledger.versions or self._flights:
            await asyncio.gather(*(self.unload(version) for version in self.ledger.versions))
            if self._flights:
                await asyncio.wait(self._flights)

    async def abort(self, message: str) -> None:
        """Ends the loads that are on their way, and lets go who is in memory; who waits for them gets Draining."""
        for flight in self._flights:
            flight.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._flights, return_exceptions=True)
        for version in self.ledger.versions:
            version.abort(message)
            self.ledger.release(version)

    async def _fly(self, version: ModelVersion, order: Order | None = None) -> None:
        """Waits for the version's load, which all who want it share; it goes on if this caller leaves.

        `order`: None for a request, which brings in nothing that was ordered out.
        """
        flight = version.flight
        if flight is None:
            if self._is_closing:
                raise Draining("the server is going down; it loads no more models")
            flight = version.flight = self._start(self._bring_in(version, order))
        try:
            await asyncio.shield(flight)
        except asyncio.CancelledError:
            if flight.cancelled():
                raise Draining("the server went down before the model was loaded") from None
            raise

    def _start(self, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        flight = asyncio.get_running_loop().create_task(work)
        self._flights.add(flight)
        flight.add_done_callback(self._landed)
        return flight

    def _landed(self, flight: asyncio.Task[Any]) -> None:
        self._flights.discard(flight)
        self.ledger.tell()
        if not flight.cancelled():
            flight.exception()  # who waited has it; all of them may have gone

    async def _bring_in(self, version: ModelVersion, order: Order | None) -> None:
        try:
            async with version.change:
                if version.is_ready:
                    return
                if order is None:
                    version.check_may_load()  # an order may have come between
                elif version.state is ModelState.FAILED:
                    version.measured_on = ""  # others' memory may have been in it
                await self._load(version, order or Order())
        finally:
            version.flight = None

    async def _load(self, version: ModelVersion, order: Order) -> None:
        if version.spec is not None:  # what has died, drained or not
            await self._send_out(version, ModelState.REGISTERED)
        version.begin_load()
        self._tell_unloaded(version)
        try:
            loaded, load_s = await self._loaded(version, order)
        except NoRoomNow:
            version.postpone()
            raise
        except RoundhouseError as error:
            self._fail(version, error)
            raise
        except asyncio.CancelledError:
            self._fail(version, Draining("its load was cancelled"))
            raise
        except Exception as error:
            # What a library raises on files that lie is its own affair; the caller gets our word for it.
            log.exception("model failed to load", model=version.model.name, version=version.version)
            kind = f"{type(error).__name__}: {error}"
            self._fail(version, InvalidModel(kind))
            raise InvalidModel(f"{version} cannot be loaded: {kind}") from error
        version.start(loaded.instances, load_s)
        self.ledger.tell()
        _log_ready(version, loaded)

    async def _loaded(self, version: ModelVersion, order: Order) -> tuple[Loaded, float]:
        """The version's instances, and the seconds that they took; their memory is in the ledger."""
        needs = await self._loader.needs(version)
        for _ in range(_MOST_TRIES):
            device = await self.ledger.reserve(version, needs, order)
            started_s = time.perf_counter()
            loaded = await self._loader.load(version, device)
            load_s = time.perf_counter() - started_s
            version.memory_bytes, version.measured_on = loaded.memory_bytes, device.kind
            try:
                if await self.ledger.correct(version, device, order):
                    return loaded, load_s
            except BaseException:
                loaded.close()
                raise
            # It takes more than was thought, and nobody who may leave is there yet: it makes room for all of it first.
            loaded.close()
            await self._loader.tidy()
            self.ledger.release(version)
        raise OutOfMemory(
            f"{version} took more memory each time that it was loaded, {format_size(version.memory_bytes)} at last"
        )

    def _fail(self, version: ModelVersion, error: RoundhouseError) -> None:
        version.fail(error)
        self.ledger.release(version)

    async def _send_out(self, version: ModelVersion, state: ModelState) -> None:
        """With the version's lock held."""
        if version.spec is None:
            version.unload(state)
            return
        version.begin_draining(state)
        try:
            await version.wait_until_unused()
        except asyncio.CancelledError:
            version.stay()
            self.ledger.tell()
            raise
        try:
            await version.close()
            await self._loader.tidy()
        finally:
            version.unload(state)
            self.ledger.release(version)
            self._tell_unloaded(version)

    async def _leaves(self, version: ModelVersion) -> None:
        """One that has to make room."""
        version.begin_draining(ModelState.REGISTERED)
        async with version.change:
            if version.spec is not None:  # else an order came first, and its word stands
                await self._send_out(version, ModelState.REGISTERED)

    def _tell_unloaded(self, version: ModelVersion) -> None:
        for callback in self._when_unloaded:
            callback(version.model.name)


def _log_ready(version: ModelVersion, loaded: Loaded) -> None:
    spec = loaded.instances[0].spec
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
        instances=len(loaded.instances),
        load_s=round(version.load_s, 3),
        warm_up_s=round(loaded.warm_up_s, 3),
    )
    if version.model.entry.cache and spec.task == "generate":
        log.warning("cache has no effect on a model that generates text", model=version.model.name)
