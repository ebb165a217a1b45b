"""The collections of the server, and which of them a principal may use."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from app.auth.errors import Forbidden
from app.auth.principal import Principal
from app.observability.metrics import RequestRecord
from extensions.search.collections.contract import (
    CollectionFailed,
    CollectionInfo,
    CollectionSettings,
    ServedCollection,
)
from extensions.search.operations.files import MAX_CREATED, CollectionFiles
from extensions.search.settings import CollectionEntry
from frameworks.core.errors import (
    CollectionExists,
    CollectionNotFound,
    Draining,
    InvalidInput,
    ModelFailed,
    ModelLoading,
    RoundhouseError,
)

if TYPE_CHECKING:
    from extensions.search.collections.collection import Collection

from frameworks.models.residency.ledger import MemoryLedger

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConfiguredCollection:
    """A collection of the settings. `folder`: of its files."""

    entry: CollectionEntry
    folder: Path


class Collections:
    """All collections. They are open from the start of the server to its end, in this process or in the supervisor.

    Owned by the event loop.
    """

    def __init__(
        self,
        configured: Iterable[ConfiguredCollection] = (),
        budget: MemoryLedger | None = None,
        files: CollectionFiles | None = None,
    ) -> None:
        """`budget`: of their memory; None without a bound. `files`: of those that are created at run time; None: this
        process creates none.
        """
        self._budget = budget
        self._files = files
        self._created: dict[str, CollectionEntry] = {}
        self._changing = asyncio.Lock()
        self._is_closed = False
        self._orders: set[asyncio.Task[None]] = set()
        self._connect: Callable[[CollectionSettings], ServedCollection] | None = None
        self.on_created_changed: Callable[[], object] = lambda: None
        """Called after `created` has changed."""
        self._configured = {each.entry.name: each for each in configured}
        self._open: dict[str, ServedCollection] = {}
        self._owned: dict[str, Collection] = {}
        self._failed: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the collections in order, and close them in reverse. Those that fail answer with ModelFailed."""
        self._loop = asyncio.get_running_loop()
        if self._files is not None:
            for entry in await asyncio.to_thread(self._files.read):
                if entry.name not in self._configured:  # the config file comes first
                    self._note(entry)
        try:
            for name, each in list(self._configured.items()):
                if self._is_stopping:
                    break
                self._opening = self._loop.create_task(self._open_one(each))
                try:
                    await self._opening
                except RoundhouseError as error:
                    log.error("collection failed to open", collection=name, reason=error.message)
                    self._failed.add(name)
                except asyncio.CancelledError:
                    if not self._was_stopped():
                        raise
                    break
            self._opening = None
            yield
        finally:
            self._is_closed = True
            async with self._changing:
                for collection in reversed(list(self._owned.values())):
                    await collection.close()

    async def _open_one(self, configured: ConfiguredCollection) -> None:
        # numba compiles products, which a server without collections does not need; the import takes seconds.
        module = await asyncio.to_thread(import_module, "extensions.search.collections.collection")
        entry = configured.entry
        self._open[entry.name] = self._owned[entry.name] = await module.open_collection(
            entry.at(configured.folder), self._budget
        )

    def stop_opening(self) -> None:
        """Do not wait for collections that are being opened: the server ends. A signal handler may call it."""
        self._is_stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_opening)

    def _was_stopped(self) -> bool:
        """Whether an opening was cancelled by `stop_opening`, and not with its caller."""
        caller = asyncio.current_task()
        return self._is_stopping and not (caller is not None and caller.cancelling())

    def _cancel_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    def connect(self, connect: Callable[[CollectionSettings], ServedCollection]) -> None:
        """Use collections that another process has open, in place of `running`."""
        self._connect = connect
        for name, each in self._configured.items():
            self._open[name] = connect(each.entry.at(each.folder))

    @property
    def may_create(self) -> bool:
        """Whether this server creates collections."""
        return self._files is not None

    @property
    def created(self) -> list[CollectionEntry]:
        """The collections that were created at run time."""
        return list(self._created.values())

    def is_created(self, name: str) -> bool:
        """Whether a collection was created at run time; others are those of the config file."""
        return name in self._created

    def show_created(self, entries: Iterable[CollectionEntry]) -> None:
        """Take `created` of the process that has the collections open, after `connect`."""
        assert self._connect is not None
        given = {entry.name: entry for entry in entries}
        for name in self._created.keys() - given.keys():
            self._forget(name)
        for name in given.keys() - self._created.keys():
            self._note(given[name])
            self._open[name] = self._connect(given[name].at(Path(name)))

    async def create(self, principal: Principal, entry: CollectionEntry) -> None:
        """Open a new collection, and keep its settings for the next start. It is completed if the caller is cancelled.

        Files of an earlier collection of this name are used again. Raises Forbidden for a name that the key may not
        use, CollectionExists, InvalidInput for too many, Draining, and the errors of the open.
        """
        if not principal.may_search(entry.name):
            raise Forbidden(
                f'name: expected a name that the patterns of the key allow, got "{entry.name}"; choose another one'
            )
        await self._to_end(self._create(entry))

    async def _create(self, entry: CollectionEntry) -> None:
        assert self._files is not None
        if entry.name in self._configured:
            raise CollectionExists(entry.name)
        if len(self._created) >= MAX_CREATED:
            raise InvalidInput("name", f"expected at most {MAX_CREATED} collections, got one more; delete another one")
        await self._open_one(ConfiguredCollection(entry, self._files.folder(entry.name)))
        try:
            await asyncio.to_thread(self._files.save, entry)
        except OSError as error:
            collection = self._owned.pop(entry.name)
            del self._open[entry.name]
            await collection.close()
            raise CollectionFailed(f"the settings of the collection cannot be kept: {error.strerror}") from error
        self._note(entry)
        self.on_created_changed()

    async def delete(self, principal: Principal, name: str) -> None:
        """Close a collection that was created at run time, and delete its files. Completed as `create`.

        Raises CollectionNotFound, Forbidden for one of the config file, and Draining.
        """
        self.entry(principal, name)
        await self._to_end(self._delete(name))

    async def _delete(self, name: str) -> None:
        if name not in self._configured:
            raise CollectionNotFound(name, [])
        if name not in self._created or self._files is None:
            raise Forbidden(
                f'collection: expected one that was created at run time, got "{name}" of the config file; remove its '
                "entry there"
            )
        collection = self._owned.pop(name, None)
        self._forget(name)
        self.on_created_changed()
        if collection is not None:
            await collection.close()
        try:
            await asyncio.to_thread(self._files.delete, name)
        except OSError as error:
            raise CollectionFailed(f"the files of the collection cannot be deleted: {error.strerror}") from error

    def _note(self, entry: CollectionEntry) -> None:
        folder = Path(entry.name) if self._files is None else self._files.folder(entry.name)
        self._created[entry.name] = entry
        self._configured[entry.name] = ConfiguredCollection(entry, folder)

    def _forget(self, name: str) -> None:
        del self._created[name], self._configured[name]
        self._open.pop(name, None)
        self._failed.discard(name)

    async def _to_end(self, order: Coroutine[Any, Any, None]) -> None:
        """Run an order after those before it, also when its caller is cancelled. Raises Draining after the end."""

        async def run() -> None:
            async with self._changing:
                if self._is_closed:
                    order.close()
                    raise Draining(Draining.REFUSED)
                await order

        task = asyncio.create_task(run())
        self._orders.add(task)
        task.add_done_callback(self._order_ended)
        await asyncio.shield(task)

    def _order_ended(self, order: "asyncio.Task[None]") -> None:
        self._orders.discard(order)
        if not order.cancelled() and (error := order.exception()) is not None:
            # Its caller may be gone.
            log.info("order to a collection failed", reason=str(error))

    def check(self, record: RequestRecord, name: str) -> None:
        """Note the collection and the operation on the record, before the body is read. Raises CollectionNotFound."""
        self.entry(record.principal, name)
        record.resource = name
        record.operation = record.path.rstrip("/").rpartition("/")[2]

    def visible(self, principal: Principal) -> list[str]:
        """Return the names that a principal may see, in the order of the settings."""
        return [name for name in self._configured if principal.may_search(name)]

    def entry(self, principal: Principal, name: str) -> CollectionEntry:
        """Return the settings of a collection. Raises CollectionNotFound, also for one that is hidden."""
        configured = self._configured.get(name) if principal.may_search(name) else None
        if configured is None:
            raise CollectionNotFound(name, self.visible(principal))
        return configured.entry

    def owned(self, principal: Principal, name: str) -> "Collection":
        """Return a collection that this process has open. Raises as `get`."""
        self.entry(principal, name)
        return self.owned_by_name(name)

    def owned_by_name(self, name: str) -> "Collection":
        """As `owned`, for a worker, which has checked the principal."""
        self.opened(name)
        return self._owned[name]

    def get(self, principal: Principal, name: str) -> ServedCollection:
        """Return an open collection. Raises CollectionNotFound, ModelFailed for one that could not be opened, and
        ModelLoading before the end of the start.
        """
        self.entry(principal, name)
        return self.opened(name)

    def opened(self, name: str) -> ServedCollection:
        """Return an open collection, as `get`, for a step of a pipeline: the configuration authorises it."""
        collection = self._open.get(name)
        if name not in self._configured:  # deleted meanwhile
            raise CollectionNotFound(name, [])
        if name in self._failed:
            raise ModelFailed(f'collection "{name}" could not be opened; the log of the server has the reason')
        if collection is None:
            raise ModelLoading(f'collection "{name}" is being opened; try again later')
        return collection

    @property
    def dimensions(self) -> Mapping[str, int]:
        """Collection → dimensions of its vectors."""
        return {name: each.entry.dimensions for name, each in self._configured.items()}

    def states(self, principal: Principal) -> dict[str, str]:
        """Return `opening`, `ready` or `failed` for each collection that a principal may see."""
        return {
            name: "failed" if name in self._failed else "ready" if name in self._open else "opening"
            for name in self.visible(principal)
        }

    async def infos(self, principal: Principal) -> Sequence[CollectionInfo]:
        """Return the state of the collections that a principal may see."""
        return [await self._owned[name].info() for name in self.visible(principal) if name in self._owned]
