"""The collections of the server, and which of them a principal may use."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from app.auth.principal import Principal
from app.config.collection_settings import CollectionEntry
from app.observability.metrics import RequestRecord
from frameworks.collections.contract import Collection, CollectionInfo, CollectionSettings, ServedCollection
from frameworks.collections.memory import Reservations
from frameworks.errors import CollectionNotFound, ModelFailed, ModelLoading, RoundhouseError

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

    def __init__(self, configured: Iterable[ConfiguredCollection] = (), budget: Reservations | None = None) -> None:
        """`budget`: of their memory; None without a bound."""
        self._budget = budget
        self._configured = {each.entry.name: each for each in configured}
        self._open: dict[str, ServedCollection] = {}
        self._owned: dict[str, Collection] = {}
        self._failed: set[str] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the collections in order, and close them in reverse. Those that fail answer with ModelFailed."""
        if not self._configured:
            yield
            return
        # numba compiles products, which a server without collections does not need.
        from frameworks.collections.collection import open_collection

        async with AsyncExitStack() as stack:
            for name, each in self._configured.items():
                try:
                    collection = await open_collection(each.entry.at(each.folder), self._budget)
                except RoundhouseError as error:
                    log.error("collection failed to open", collection=name, reason=error.message)
                    self._failed.add(name)
                    continue
                stack.push_async_callback(collection.close)
                self._open[name] = self._owned[name] = collection
            yield

    def connect(self, connect: Callable[[CollectionSettings], ServedCollection]) -> None:
        """Use collections that another process has open, in place of `running`."""
        for name, each in self._configured.items():
            self._open[name] = connect(each.entry.at(each.folder))

    def check(self, record: RequestRecord, name: str) -> None:
        """Note the collection and the operation on the record, before the body is read. Raises CollectionNotFound."""
        self.entry(record.principal, name)
        record.collection = name
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

    def owned(self, principal: Principal, name: str) -> Collection:
        """Return a collection that this process has open. Raises as `get`."""
        self.entry(principal, name)
        return self.owned_by_name(name)

    def owned_by_name(self, name: str) -> Collection:
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
        if name in self._failed:
            raise ModelFailed(f'collection "{name}" could not be opened; the log of the server has the reason')
        if collection is None:
            raise ModelLoading(f'collection "{name}" is being opened; try again later')
        return collection

    @property
    def dimensions(self) -> Mapping[str, int]:
        """Collection → numbers of each vector."""
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
